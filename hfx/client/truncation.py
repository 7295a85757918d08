"""The warning that a text was longer than its model reads: once for each model of a client, at its caller's line.

Owns who has been warned; results carry the numbers.
"""

from __future__ import annotations

import sys
import warnings

PACKAGE = "hfx.client"


class TruncationWarning(UserWarning):
    """A text was longer than the model reads, and its rest was left out; told once for each model of a client."""


class Truncations:
    """What a client has warned of."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def note(self, model: str, tokens: int) -> None:
        """Warn that so many tokens of a text were left out, unless none were or it has been told of this model."""
        if not tokens or model in self._warned:
            return
        self._warned.add(model)
        warnings.warn(
            f"A text is longer than the model {model!r} reads: {tokens} tokens or more were left out. Later ones are "
            "not warned of: see truncated_tokens of each result.",
            TruncationWarning,
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """How many frames away this package's caller is, as seen from who calls this."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
