"""The engine's interface to structured output: which tokens may come next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Matcher(Protocol):
    """The state of one sequence's structured output.

    It has taken the sequence's tokens so far, except forced tokens. Only one thread may use it.
    """

    def few(self) -> NDArray[np.int64] | None:
        """Return the tokens that may come next, ascending, or None if they are many. Raises StepFailed."""

    def best(self, logits: Floats, argmax: int) -> int:
        """Return the token with the highest of `logits` [vocabulary] among the tokens that may come next.

        Of equal logits, the lowest id wins. `argmax` is the best token of the whole vocabulary. Raises StepFailed.
        """

    def forbid(self, scores: Floats) -> None:
        """Set to minus infinity, in place, the `scores` [vocabulary] of the tokens that may not come next.

        Raises StepFailed.
        """

    def take(self, token: int) -> None:
        """Add `token`. After an end token, or after a token that was not allowed, only end tokens may come next."""

    def copy(self) -> Matcher:
        """Return an independent copy."""


# Makes the matcher of a new sequence.
NewMatcher = Callable[[], Matcher]
