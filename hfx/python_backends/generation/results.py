"""What a caller gets: a text, or its pieces as they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Piece:
    """The next part of text `index` (of `num_return_sequences`), or all of it.

    The last piece of an index, and no other, has a `finish_reason`: stop (an end token or a stop string), length or
    cancelled; its text may be empty. Counts are those of the request up to here: tokens that the model has read
    (special ones too), tokens of this text that it has generated (the end token too, and those of a stop string), and
    tokens of the input that it did not get to see. `log_probs` are those of the tokens since the piece before.
    """

    text: str
    index: int = 0
    finish_reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    truncated_tokens: int = 0
    log_probs: tuple[float, ...] | None = None

    def outputs(self) -> dict[str, Any]:
        """Its values by the names of a generator's output tensors."""
        return {
            "text_output": self.text,
            "finish_reason": self.finish_reason or "",
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "truncated_tokens": self.truncated_tokens,
            "output_log_probs": self.log_probs or (),
        }


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Pieces of one text that follow each other, at least one, as a single piece."""
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    log_probs = tuple(one for piece in pieces for one in piece.log_probs or ())
    has_none = all(piece.log_probs is None for piece in pieces)
    return replace(last, text="".join(piece.text for piece in pieces), log_probs=None if has_none else log_probs)


def join_texts(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The whole texts that `pieces` are of, by index; `pieces` must hold the last piece of each."""
    by_index: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_index.setdefault(piece.index, []).append(piece)
    return tuple(join_pieces(by_index[index]) for index in sorted(by_index))
