"""Answers with a form: which tokens may come next, in the order of a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .processors import BANNED
from .search import check_best


class Matcher(Protocol):
    """The tokens of one sequence so far, as a form reads them. Forced tokens are not among them. For one thread."""

    def allows(self, token: int) -> bool:
        """Whether `token` may come next: quicker than a mask. False, too, where `mask` raises."""

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens [vocabulary] may come next. Raises StepFailed where that can't be computed."""

    def take(self, token: int) -> None:
        """Go on with `token`; behind an end token, or one that may not come, end tokens alone may."""

    def copy(self) -> Matcher:
        """One that goes on from here by itself."""


# Makes the matcher of a sequence that begins.
NewMatcher = Callable[[], Matcher]


def forbid(scores: NDArray[np.float32], matchers: Sequence[Matcher]) -> None:
    """Make the `scores` [rows, vocabulary] of tokens that may not come minus infinity, in place; a matcher a row."""
    for row, matcher in zip(scores, matchers, strict=True):
        mask = matcher.mask()
        if 2 * np.count_nonzero(mask) > len(mask):
            row[np.flatnonzero(~mask)] = BANNED
        else:
            allowed = np.flatnonzero(mask)
            kept = row[allowed]
            row.fill(BANNED)
            row[allowed] = kept


def best_allowed(logits: NDArray[np.float32], matcher: Matcher) -> int:
    """The best token of a row that may come, the lowest of equal ones. Raises StepFailed where none may."""
    mask = matcher.mask()
    allowed = None if 2 * np.count_nonzero(mask) > len(mask) else np.flatnonzero(mask)
    scores = np.where(mask, logits, BANNED) if allowed is None else logits[allowed]
    check_best(float(scores.max(initial=BANNED)))
    best = int(scores.argmax())
    return best if allowed is None else int(allowed[best])
