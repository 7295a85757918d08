"""The consecutive requests of one call: for the parts of a document, or for many texts.

The answers to the parts of a document are joined. The joined answers may in turn become the text of a new round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import islice

from ..engine.request import Request
from ..errors import QueueFull
from .pieces import Piece, Pieces
from .streams import Read, TextStream, compute, read_whole

# Submits a request, and returns the pieces that the Read makes of its events.
Submit = Callable[[Request, Read], Pieces]


class Cancelled(Exception):
    """The call was cancelled while its texts were divided."""


class RequestWindow:
    """Submits requests ahead of their reader: up to `size` at a time, where `size` is at least 2.

    Requests are made as they are needed, `slice_size` of them at a time. `count` is the number of requests made so far,
    and `cancelled` says that the others will not be made. `document` is the number of the document whose parts the
    requests are for. The requests get this number if there is at least a full slice of them.
    """

    def __init__(
        self,
        stream: TextStream,
        submit: Submit,
        requests: Iterator[Request],
        size: int,
        slice_size: int = 1,
        document: int = 0,
    ) -> None:
        self.count = 0
        self.cancelled = False
        self._stream = stream
        self._submit = submit
        self._requests = requests
        self._size = size
        self._slice_size = slice_size
        self._document = document
        self._complete = False
        self._ready: deque[Request] = deque()
        self._submitted: deque[Pieces] = deque()

    @property
    def at_end(self) -> bool:
        """Whether no request follows the one that is being read."""
        return self._complete and not (self._ready or self._submitted or self.cancelled)

    def prepare(self, most: int) -> Pieces:
        """Make requests until there are at least `most`, or all of them."""
        while self.count < most and not self._complete:
            yield from compute(self._stream, self._prepare)

    def pieces(self, read: Read) -> Pieces:
        """Yield the pieces of one request after the other. Raises what submitting raises.

        If the engine's queue is full, fewer requests are submitted; the others follow when the first is done.
        """
        while True:
            yield from self._submit_more(read)
            if not self._submitted:
                return
            yield from self._submitted.popleft()

    def _submit_more(self, read: Read) -> Pieces:
        while len(self._submitted) < self._size:
            if self._ready:
                try:
                    self._submitted.append(self._submit(self._ready[0], read))
                except QueueFull:
                    if not self._submitted:
                        raise
                    return
                self._ready.popleft()
            elif self._complete:
                return
            else:
                yield from compute(self._stream, self._prepare)

    def _prepare(self) -> None:
        try:
            requests = [*islice(self._requests, self._slice_size)]
        except Cancelled:
            self.cancelled = self._complete = True
            return
        self.count += len(requests)
        self._complete = len(requests) < self._slice_size
        if self._document and self.count >= self._slice_size:
            requests = [replace(request, document=self._document) for request in requests]
        self._ready += requests


# Between the texts of two parts.
SEPARATOR = " "

# Of the reasons of all parts, the one that comes last here is the reason of the whole text.
_REASONS = ("stop", "length", "cancelled")

# Makes the window of the requests for the parts of a text.
OpenWindow = Callable[[str], RequestWindow]


def concatenate(text: str, open_window: OpenWindow, read: Read) -> Pieces:
    """Yield the answers to all parts, joined. Empty answers add no separator."""
    yield from _concatenated(open_window(text), read, Piece(""))


def summarize(text: str, open_window: OpenWindow, read: Read) -> Pieces:
    """Answer the joined answers of all parts again, until they fit into one part, and yield the last answer.

    If the joined answers are empty, or do not have fewer parts than the text before, they are the result. The counts
    are totals of all rounds; the pieces are those of the last round.
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
    """Yield the pieces of all requests as the pieces of one text. `counts` has the counts of earlier rounds."""
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
    """Return `piece` with `counts` added to its own counts, and with the worse of the two reasons."""
    reasons = [reason for reason in (counts.finish_reason, piece.finish_reason) if reason]
    return replace(
        piece,
        finish_reason=max(reasons, key=_REASONS.index, default=None),
        input_tokens=counts.input_tokens + piece.input_tokens,
        output_tokens=counts.output_tokens + piece.output_tokens,
        truncated_tokens=counts.truncated_tokens + piece.truncated_tokens,
    )
