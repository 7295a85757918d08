"""What becomes of the parts of a long document: their texts one after the other, or a text of those texts.

Both are scripts over runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce

from .results import Piece, join_pieces
from .runs import Read, Run, Runs
from .streams import Script

# Between the texts of two parts.
SEPARATOR = " "

_REASONS = ("stop", "length", "cancelled")  # of several, the last one counts


@dataclass(frozen=True)
class Document:
    """A text, and how it and others are divided and run."""

    text: str
    runs: Callable[[str], Runs]


def concatenated(document: Document, read: Read) -> Script:
    """The texts of all parts, joined; those that are empty leave no space."""
    yield from _joined(document.runs(document.text), read, Piece(""))


def summarized(document: Document, read: Read) -> Script:
    """The text of the joined texts of all parts, of which the same is made until they fit into one part.

    Should they not get shorter (fewer parts than before), or be empty, they are left at that. Counts are those of all
    rounds, pieces those of the last.
    """
    counts = Piece("")
    runs = document.runs(document.text)
    yield from runs.prepare(2)
    while runs.count > 1:
        pieces: list[Piece] = []
        yield from _changed(runs.pieces(Run.whole), pieces.append)
        counts = reduce(_summed, pieces, replace(counts, finish_reason=None))
        text = SEPARATOR.join(piece.text for piece in pieces if piece.text)
        if runs.cancelled:
            counts = replace(counts, finish_reason="cancelled")
        if runs.cancelled or not text:
            yield replace(counts, text=text)
            return
        before, runs = runs.count, document.runs(text)
        yield from runs.prepare(before)
        if runs.count >= before:
            yield replace(counts, text=text)
            return
    yield from _joined(runs, read, replace(counts, finish_reason=None))


def _joined(runs: Runs, read: Read, counts: Piece) -> Script:
    """The pieces of all runs as those of one text; `counts` are what came before."""
    joining = _Joining(runs, counts)
    yield from _changed(runs.pieces(read), joining)
    if runs.cancelled:
        yield replace(joining.counts, text="", finish_reason="cancelled")


class _Joining:
    """Makes the pieces of runs those of one text. `counts` are those of the runs that are over."""

    def __init__(self, runs: Runs, counts: Piece) -> None:
        self.counts = counts
        self._runs = runs
        self._has_text = False
        self._separates = False

    def __call__(self, piece: Piece) -> Piece | None:
        text = piece.text
        if text:
            text = SEPARATOR + text if self._separates else text
            self._has_text, self._separates = True, False
        summed = _summed(self.counts, piece)
        if piece.finish_reason:
            self.counts, self._separates = summed, self._has_text
        is_last = bool(piece.finish_reason) and self._runs.at_end
        summed = replace(summed, text=text, finish_reason=summed.finish_reason if is_last else None)
        return summed if text or is_last else None


def gathered(script: Script) -> Script:
    """The pieces of a script with one text as a single one, at its end."""
    pieces: list[Piece] = []
    yield from _changed(script, pieces.append)
    yield join_pieces(pieces)


def one_after_the_other(scripts: Iterable[Script]) -> Script:
    """The pieces of all scripts, each of which is made once the one before is done."""
    for script in scripts:
        yield from script


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


def _changed(script: Script, change: Callable[[Piece], Piece | None]) -> Script:
    """A script with other pieces, or without those that `change` makes None of."""
    answer = None
    try:
        while True:
            step = script.send(answer)
            answer = None
            if not isinstance(step, Piece):
                answer = yield step
            elif (changed := change(step)) is not None:
                yield changed
    except StopIteration:
        return
    finally:
        script.close()
