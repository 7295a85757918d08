"""The interface of searches, each of which continues one sequence or one beam group.

A search knows its scores, but nothing of slots, caches and runtimes. The engine runs the model, calls `edit` and
`choose`, and takes the next input tokens from `next_inputs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..errors import StepFailed
from ..exponential import exp, log
from .matcher import Floats
from .processors import Edits
from .request import Event, Step, Top

# `candidates` of a search that must see every score of its row.
WHOLE_ROW = -1


def check_best(score: float) -> None:
    """Raise StepFailed if even the best score of a step is minus infinity, or is not a finite number."""
    if not float("-inf") < score < float("inf"):
        raise StepFailed(
            f"the best score of the next token is {score}: no token is left to choose",
            "Check that suppress_ids, bad_words_ids, no_repeat_ngram_size and structured output leave some tokens",
        )


class Search(Protocol):
    """The search of one sequence, or of one beam group.

    In each step, the engine runs the model. If `candidates` is not 0, it copies the rows' logits (or, if
    `uses_log_probs`, their log-softmax), edits the copy, and takes the best scores of it. Then it calls `choose`.
    It edits scores on the host by `edit`. If `edits_by_id`, it may apply `edits` on a device instead.

    `candidates` and `forced` are read at each step; the other attributes never change. The search occupies `rows` rows
    from its first choice to its last: 1, or the number of beams. `prompt` has the tokens that the decoder reads, in
    every row, before the first choice. A forced first token is part of it, unless its log-probability is wanted: then
    the token takes a run of its own. `wants_log_probs` says whether `choose` needs its `log_probs`, and `top_count` how
    many tokens its `top` has.
    """

    rows: int
    prompt: Ids
    edits_by_id: bool
    uses_log_probs: bool
    wants_log_probs: bool
    top_count: int

    @property
    def candidates(self) -> int:
        """The number of best scores per row that `choose` needs at this step.

        If it is 0, the row's argmax is enough, and scores are not edited. If it is WHOLE_ROW, `choose` needs the whole
        edited row. If it exceeds the size of the vocabulary, the scores of the whole vocabulary are enough.
        """

    @property
    def forced(self) -> int | None:
        """The token that this step must choose, or None if it is free. With a forced token, `candidates` is 0."""

    def allowed_token(self, argmax: int, logits: Floats) -> int | None:
        """Return the token that a search of one row with structured output takes from its `logits` [vocabulary].

        `argmax` is the id of the highest logit. Returns None if the search needs more, such as edited scores.
        Otherwise, `choose` gets the token as if `candidates` were 0. Raises StepFailed.
        """

    def next_inputs(self) -> Sequence[int]:
        """Return the input token of each row for the next step."""

    def edits(self) -> Edits:
        """Return the changes to the scores of this step that ids determine; if `edits_by_id`, these are all changes."""

    def edit(self, scores: Floats) -> None:
        """Apply `edits` and all other changes to `scores` [rows, vocabulary], in place."""

    def choose(
        self,
        values: Floats | None,
        ids: NDArray[np.int64] | None,
        log_probs: Floats | None = None,
        top: Top = (),
    ) -> Step:
        """Choose the next token of each row, and the forced tokens after it unless their log-probabilities are wanted.

        `values` and `ids` are [rows, k], best first, and lowest id first if scores are equal; k is `candidates` or
        more. With 0 candidates, `values` is None and `ids` [rows, 1] is the argmax, or `forced` if that is a token.
        With WHOLE_ROW, `values` is the edited row [rows, vocabulary] in the vocabulary's order, and `ids` is None.

        `log_probs`, if wanted, is the log-softmax of the *unedited* logits at `ids` (with WHOLE_ROW: at every id), of
        the same shape. `top` has the `top_count` most probable tokens of these logits. The search keeps no reference to
        the arrays. Raises StepFailed if no token is left to choose; then only this search fails.
        """

    def cancelled(self) -> tuple[Event, ...]:
        """Return the completions with which the search ends if its request is cancelled now."""


def log_probs_at(logits: Floats, ids: NDArray[np.int64] | None) -> Floats:
    """Return the log-softmax of `logits` [rows, vocabulary] at `ids` [rows, k], or at every id, for `Search.choose`."""
    highest = logits.max(axis=1, keepdims=True)
    total = log(exp(logits - highest).sum(axis=1, keepdims=True))
    picked = logits if ids is None else np.take_along_axis(logits, ids, axis=1)
    log_probs: Floats = (picked - highest) - total
    return log_probs
