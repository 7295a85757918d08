"""The engine's interface to structured output: which tokens may come next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Matcher(Protocol):
    """The structured output of one sequence: its tokens so far, without forced ones. For one thread."""

    def few(self) -> NDArray[np.int64] | None:
        """Return the tokens that may come next, ascending, or None if they are many. Raises StepFailed."""

    def best(self, logits: Floats, argmax: int) -> int:
        """Return the best token of `logits` [vocabulary] that may come next, the lowest of equal ones.

        `argmax` is the best of all tokens. Raises StepFailed.
        """

    def forbid(self, scores: Floats) -> None:
        """Set the `scores` [vocabulary] of tokens that may not come to minus infinity, in place. Raises StepFailed."""

    def take(self, token: int) -> None:
        """Add `token`. After an end token, or a token that may not come, only end tokens may come next."""

    def copy(self) -> Matcher:
        """Return an independent copy."""


# Makes the matcher of a new sequence.
NewMatcher = Callable[[], Matcher]
