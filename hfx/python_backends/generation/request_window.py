"""The requests of one call that follow each other: the parts of a document, or many texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from ..engine.errors import QueueFull
from ..engine.request import Request
from .pieces import Pieces, Read
from .streams import TextStream, compute

# Submits a request; its pieces, as they are read so.
Submit = Callable[[Request, Read], Pieces]


class Cancelled(Exception):
    """The call was cancelled while its texts were divided."""


class RequestWindow:
    """Up to `size` requests, at least 2, are submitted ahead of their reader.

    Requests are made as they are needed, `slice_size` of them at a time; `count` are made, and `cancelled` says that
    the others will not be. `document` is the number of the one that they are parts of, which those that have more than
    a slice get.
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
        """Whether nothing follows the request that is read."""
        return self._complete and not (self._ready or self._submitted or self.cancelled)

    def prepare(self, most: int) -> Pieces:
        """Make requests until there are `most`, or all of them."""
        while self.count < most and not self._complete:
            yield from compute(self._stream, self._prepare)

    def pieces(self, read: Read) -> Pieces:
        """The pieces of one request after the other. Raises what submitting raises.

        Submits fewer where the engine's queue is full, and more when the first is done.
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
