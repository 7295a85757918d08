"""What the engine knows of an answer with a form: which tokens may come next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Matcher(Protocol):
    """The tokens of one sequence so far, as a form reads them. Forced tokens are not among them. For one thread."""

    def few(self) -> NDArray[np.int64] | None:
        """The tokens that may come next, ascending, where they are few; None where they are many. Raises StepFailed."""

    def best(self, logits: Floats, argmax: int) -> int:
        """The best token of a row [vocabulary] that may come next, the lowest of equal ones. Raises StepFailed.

        `argmax` is the best of all.
        """

    def forbid(self, scores: Floats) -> None:
        """Make the `scores` [vocabulary] of tokens that may not come minus infinity, in place. Raises StepFailed."""

    def take(self, token: int) -> None:
        """Go on with `token`; behind an end token, or one that may not come, end tokens alone may."""

    def copy(self) -> Matcher:
        """One that goes on from here by itself."""


# Makes the matcher of a sequence that begins.
NewMatcher = Callable[[], Matcher]
