"""What the zoo raises of its own."""

from __future__ import annotations


class TrainingMissed(RuntimeError):
    """A trained checkpoint stayed below its recipe's floor on held-out data, and is not published."""
