"""What a caller gets: a text, or its pieces as they come. Frozen values; they know nothing of how they are made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """The next part of text `index` (of `num_return_sequences`).

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


@dataclass(frozen=True)
class Generated:
    """A whole text; the fields are those of its pieces, the texts and log-probs joined."""

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    truncated_tokens: int
    log_probs: tuple[float, ...] | None = None
    index: int = 0


def joined(pieces: Iterable[Piece]) -> tuple[Generated, ...]:
    """The texts that `pieces` are of, by index; `pieces` must hold the last piece of each."""
    by_index: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_index.setdefault(piece.index, []).append(piece)
    return tuple(_joined(by_index[index]) for index in sorted(by_index))


def _joined(pieces: list[Piece]) -> Generated:
    last = pieces[-1]
    log_probs = None
    if last.log_probs is not None:
        log_probs = tuple(one for piece in pieces for one in piece.log_probs or ())
    return Generated(
        text="".join(piece.text for piece in pieces),
        finish_reason=last.finish_reason or "cancelled",
        input_tokens=last.input_tokens,
        output_tokens=last.output_tokens,
        truncated_tokens=last.truncated_tokens,
        log_probs=log_probs,
        index=last.index,
    )
