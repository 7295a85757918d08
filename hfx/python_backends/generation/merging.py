"""What becomes of the parts of a long document: their texts one after the other, or a text of those texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from .pieces import Piece, Pieces, Read, read_whole
from .request_window import RequestWindow

# Between the texts of two parts.
SEPARATOR = " "

_REASONS = ("stop", "length", "cancelled")  # of several, the last one counts

# The requests of the parts of a text.
OpenWindow = Callable[[str], RequestWindow]


def concatenate(text: str, open_window: OpenWindow, read: Read) -> Pieces:
    """The texts of all parts, joined; those that are empty leave no space."""
    yield from _concatenated(open_window(text), read, Piece(""))


def summarize(text: str, open_window: OpenWindow, read: Read) -> Pieces:
    """The text of the joined texts of all parts, of which the same is made until they fit into one part.

    Should they not get shorter (fewer parts than before), or be empty, they are left at that. Counts are those of all
    rounds, pieces those of the last.
    """
    counts = Piece("")
    window = open_window(text)
    yield from window.prepare(2)
    while window.count > 1:
        pieces: list[Piece] = []
        for piece in window.pieces(read_whole):
            if piece is None:
                yield None
            else:
                pieces.append(piece)
        counts = reduce(_summed, pieces, replace(counts, finish_reason=None))
        text = SEPARATOR.join(piece.text for piece in pieces if piece.text)
        if window.cancelled:
            counts = replace(counts, finish_reason="cancelled")
        if window.cancelled or not text:
            yield replace(counts, text=text)
            return
        before, window = window.count, open_window(text)
        yield from window.prepare(before)
        if window.count >= before:
            yield replace(counts, text=text)
            return
    yield from _concatenated(window, read, replace(counts, finish_reason=None))


def _concatenated(window: RequestWindow, read: Read, counts: Piece) -> Pieces:
    """The pieces of all requests as those of one text; `counts` are what came before."""
    has_text = separates = False
    for piece in window.pieces(read):
        if piece is None:
            yield None
            continue
        text = piece.text
        if text:
            text = SEPARATOR + text if separates else text
            has_text, separates = True, False
        summed = _summed(counts, piece)
        if piece.finish_reason:
            counts, separates = summed, has_text
        is_last = bool(piece.finish_reason) and window.at_end
        if text or is_last:
            yield replace(summed, text=text, finish_reason=summed.finish_reason if is_last else None)
    if window.cancelled:
        yield replace(counts, text="", finish_reason="cancelled")


def _summed(counts: Piece, piece: Piece) -> Piece:
    """A piece with the counts before it added, and the worse of the reasons."""
    reasons = [reason for reason in (counts.finish_reason, piece.finish_reason) if reason]
    return replace(
        piece,
        finish_reason=max(reasons, key=_REASONS.index, default=None),
        input_tokens=counts.input_tokens + piece.input_tokens,
        output_tokens=counts.output_tokens + piece.output_tokens,
        truncated_tokens=counts.truncated_tokens + piece.truncated_tokens,
    )
