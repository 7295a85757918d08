"""What becomes of the parts of a long document: their texts one after the other, or a text of those texts.

Both are scripts over runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from .results import Piece, merged
from .runs import Read, Run, Submit, in_order
from .streams import Script, work

# Between the texts of two parts.
SEPARATOR = " "

_REASONS = ("stop", "length", "cancelled")  # of several, the last one counts


@dataclass(frozen=True)
class Document:
    """A text, how it and others are divided, and how parts are submitted, `at_once` at a time."""

    text: str
    split: Callable[[str], Sequence[str]]
    submit: Submit
    at_once: int

    def runs(self, parts: Sequence[str], read: Read) -> Script:
        """The pieces of the parts' texts, one part after the other."""
        return in_order(self.submit, parts, read, self.at_once)


def concatenated(document: Document, read: Read) -> Script:
    """The texts of all parts, joined; those that are empty leave no space."""
    parts = yield work(partial(document.split, document.text))
    yield from _changed(document.runs(parts, read), _Joining(len(parts), Piece("")))


def summarized(document: Document, read: Read) -> Script:
    """The text of the joined texts of all parts, of which the same is made until they fit into one part.

    Should they not get shorter (fewer parts than before), or be empty, they are left at that. Counts are those of all
    rounds, pieces those of the last.
    """
    parts: Sequence[str] = yield work(partial(document.split, document.text))
    counts = Piece("")
    while len(parts) > 1:
        pieces: list[Piece] = []
        yield from _changed(document.runs(parts, Run.whole), pieces.append)
        counts = reduce(_summed, pieces, replace(counts, finish_reason=None))
        text = SEPARATOR.join(piece.text for piece in pieces if piece.text)
        before, parts = len(parts), (yield work(partial(document.split, text)))
        if not text or len(parts) >= before:
            yield replace(counts, text=text)
            return
    yield from _changed(document.runs(parts, read), _Joining(1, replace(counts, finish_reason=None)))


class _Joining:
    """Makes the pieces of `parts` texts those of one text; `counts` are what came before."""

    def __init__(self, parts: int, counts: Piece) -> None:
        self._left = parts
        self._counts = counts
        self._has_text = False
        self._separates = False

    def __call__(self, piece: Piece) -> Piece | None:
        text = piece.text
        if text:
            text = SEPARATOR + text if self._separates else text
            self._has_text, self._separates = True, False
        summed = _summed(self._counts, piece)
        if piece.finish_reason:
            self._counts, self._separates = summed, self._has_text
            self._left -= 1
        if self._left:
            summed = replace(summed, finish_reason=None)
        return replace(summed, text=text) if text or not self._left else None


def gathered(script: Script) -> Script:
    """The pieces of a script with one text as a single one, at its end."""
    pieces: list[Piece] = []
    yield from _changed(script, pieces.append)
    yield merged(pieces)


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
