"""How one sequence, or one set of beams, goes on: it knows its scores, and nothing of slots, caches and runtimes.

The engine runs the model, calls `edit` and `choose`, and feeds what `feed` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..errors import StepFailed
from .matcher import Floats
from .request import Event, Step, Top

# `candidates` of a search that must see every score of its row.
WHOLE_ROW = -1


def check_best(score: float) -> None:
    """Refuse to choose where even the best score of a step is minus infinity, or is not a number. Raises StepFailed."""
    if not float("-inf") < score < float("inf"):
        raise StepFailed(
            f"the best score of the next token is {score}: no token is left to choose",
            "Check that suppress_ids, bad_words_ids, no_repeat_ngram_size and a form leave some; is the model sound?",
        )


class Search(Protocol):
    """How one sequence, or one set of beams, is continued.

    A step of the engine: run the model; where `candidates` is not 0, copy the rows' logits (log-softmaxed where
    `uses_log_probs`) to a scratch, call `edit` on it, and take the best of it; then call `choose`. `candidates`
    and `forced` are read at each step; what follows never changes. The search occupies `rows` rows from its first
    choice to its last: 1, or the number of beams. `prompt` is what the decoder is fed with, in every row, before the
    first choice; a forced first token is part of it unless its log-probability is wanted, which takes a run.
    `wants_log_probs`: whether `choose` needs its `log_probs`; `top_count`: how many tokens its `top` has.
    """

    rows: int
    prompt: Ids
    uses_log_probs: bool
    wants_log_probs: bool
    top_count: int

    @property
    def candidates(self) -> int:
        """Best scores a row that `choose` needs at this step.

        0: the row's argmax is enough and `edit` is not called; WHOLE_ROW: the edited row itself. It may exceed the
        vocabulary: then the vocabulary is enough.
        """

    @property
    def forced(self) -> int | None:
        """The token that this step must choose, if it must; `candidates` is 0 then."""

    def allowed_token(self, argmax: int, logits: Floats) -> int | None:
        """The token that a search of one row with a form takes of its logits [vocabulary], whose best is `argmax`.

        None where it needs more, as edited scores. Else `choose` gets it as if `candidates` were 0. Raises StepFailed.
        """

    def feed(self) -> Sequence[int]:
        """The token that each row is fed with at the next step."""

    def edit(self, scores: Floats) -> None:
        """Apply the settings' processors to `scores` [rows, vocabulary], in place."""

    def choose(
        self,
        values: Floats | None,
        ids: NDArray[np.int64] | None,
        log_probs: Floats | None = None,
        top: Top = (),
    ) -> Step:
        """Choose the next token of each row, and every token after it that is forced and whose log-prob none wants.

        `values`, `ids`: [rows, k], best first, lowest id first where scores are equal; k is `candidates` or more.
        With 0 candidates `values` is None and `ids` [rows, 1] the argmax, or `forced` where that is one; with
        WHOLE_ROW `values` is the edited row [rows, vocabulary] in the vocabulary's order and `ids` None. `log_probs`:
        where wanted, log-softmax of the *unedited* logits at `ids` (with WHOLE_ROW: at every id), of the same shape;
        `top` are the `top_count` most probable tokens of these logits. Nothing of the arrays is kept.
        Raises StepFailed if no token is left to choose; only this search is concerned then.
        """

    def cancelled(self) -> tuple[Event, ...]:
        """The completions if the search ends now, for a reason that is not its own."""


def log_probs_at(logits: Floats, ids: NDArray[np.int64] | None) -> Floats:
    """log-softmax of `logits` [rows, vocabulary] at `ids` [rows, k], or at every id: `choose`'s log_probs."""
    highest = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
    picked = logits if ids is None else np.take_along_axis(logits, ids, axis=1)
    log_probs: Floats = (picked - highest) - total
    return log_probs
