"""What a search answers when it has chosen, and the refusal to choose where nothing is left."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import StepFailed
from .request import Completion, Token

# `candidates` of a search that must see every score of its row.
WHOLE_ROW = -1


@dataclass(frozen=True)
class Step:
    """The outcome of one choice of one search.

    `parents[row]` is the row whose cache row `row` continues (its own number where nothing moved); `emitted` are the
    tokens that are final now, in order; `completions`, where there are any, say that the search is over.
    """

    parents: tuple[int, ...]
    emitted: tuple[Token, ...] = ()
    completions: tuple[Completion, ...] = ()


def check_best(score: float) -> None:
    """Refuse to choose where even the best score of a step is minus infinity, or is not a number. Raises StepFailed."""
    if not float("-inf") < score < float("inf"):
        raise StepFailed(
            f"the best score of the next token is {score}: no token is left to choose",
            "Check that suppress_ids, bad_words_ids and no_repeat_ngram_size leave some, and that the model is sound",
        )
