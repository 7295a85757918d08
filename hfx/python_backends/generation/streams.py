"""Streams of pieces, made from the engine's events.

A thread may wait for the pieces of one stream, or poll many streams.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from ..engine.jobs import Job, Listener
from ..engine.request import Event
from ..errors import EngineClosed
from .pieces import Piece, Pieces, SequenceReader

# Starts slow work in another thread.
Start = Callable[[Callable[[], None]], "Future[Any]"]
OpenPieces = Callable[["TextStream"], Pieces]


class TextStream:
    """An iterator over the pieces of a request's texts, as they come.

    Closing the stream early cancels the request: by `close`, by the end of a `with` block, or by dropping all
    references to it. Failures of the engine are raised as its EngineError. Only one thread at a time may use the
    stream, except for `cancel`.

    The stream has pieces once it is open: after `open`, or from the beginning if it was made with `open_pieces`. A
    thread that polls many streams sets the `listener` of each, which is notified when to poll again, and `start`, which
    starts slow work in another thread (None: `poll` does it).
    """

    def __init__(self, open_pieces: OpenPieces | None = None) -> None:
        self.cancelled = threading.Event()
        self.start: Start | None = None
        self._news = threading.Event()
        self._own_listener = self.listener = Listener(_set_all, self._news)
        self._jobs: weakref.WeakSet[Job] = weakref.WeakSet()
        self._lock = threading.Lock()  # protects `cancelled` and `_jobs`
        self._pieces: Pieces | None = None
        if open_pieces is not None:
            self.open(open_pieces)

    def open(self, open_pieces: OpenPieces) -> None:
        """Submit the request by calling `open_pieces`, which returns the pieces.

        `open_pieces` gets only a weak reference to the stream, because the stream must be freed as soon as its user
        drops it.
        """
        self._pieces = open_pieces(weakref.proxy(self))

    def add(self, job: Job) -> None:
        """Register `job` to be cancelled with the stream.

        If the stream is cancelled already, cancel the job at once.
        """
        with self._lock:
            self._jobs.add(job)
            is_cancelled = self.cancelled.is_set()
        if is_cancelled:
            job.cancel()

    def cancel(self) -> None:
        """End the request soon. Its texts end where they are, with the reason "cancelled". Any thread may call this."""
        with self._lock:
            self.cancelled.set()
            jobs = tuple(self._jobs)
        for job in jobs:
            job.cancel()

    def close(self) -> None:
        """Cancel the rest of the request, and close the stream."""
        self.cancel()  # also jobs whose pieces were never read
        if self._pieces is not None:
            self._pieces.close()
        self.listener, self.start = self._own_listener, None  # the listener's key may refer to the stream

    def poll(self) -> Piece | None:
        """Return the next piece, or None if it is not there yet. The listener is notified when to poll again.

        Raises StopIteration after the last piece.
        """
        assert self._pieces is not None, "a stream that is not open has no pieces"
        try:
            return next(self._pieces)
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        self.cancel()

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> Piece:
        self.listener, self.start = self._own_listener, None
        try:
            while (piece := self.poll()) is None:
                self._news.wait()
                self._news.clear()
        except KeyboardInterrupt:
            self.close()
            raise
        return piece

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def compute(stream: TextStream, work: Callable[[], None]) -> Pieces:
    """Yield no piece until `work` is done, in another thread if the stream is polled. Raises what `work` raises."""
    if stream.start is None:
        work()
        return
    listener, future = stream.listener, stream.start(work)
    future.add_done_callback(lambda _: listener.notify([listener.key]))
    while not future.done():
        yield None
    future.result()


def _set_all(events: Iterable[threading.Event]) -> None:
    for event in events:
        event.set()


Read = Callable[[TextStream, Job, Sequence[SequenceReader]], Pieces]


def read_live(stream: TextStream, job: Job, readers: Sequence[SequenceReader]) -> Pieces:
    """Yield the pieces of the texts, one text for each of `readers`, as tokens come.

    Once all texts have met a stop string, the request is cancelled.
    """
    newest = {index: reader.first(index, job.request) for index, reader in enumerate(readers)}
    try:
        while newest:
            job.on_events = stream.listener
            events = job.poll()
            if events is None:
                raise EngineClosed("the engine ended the request before its texts were complete")
            if not events:
                yield None
            yield from _pieces(events, newest, readers)
    finally:
        job.cancel()


def read_whole(stream: TextStream, job: Job, readers: Sequence[SequenceReader]) -> Pieces:
    """Yield a single piece for each text, when all texts are complete. The listener is not notified before."""
    try:
        while True:
            job.on_end = stream.listener
            if job.done:
                break
            yield None
        newest = {index: reader.first(index, job.request) for index, reader in enumerate(readers)}
        yield from _pieces(job.result(), newest, readers)
    finally:
        job.cancel()


def _pieces(events: Iterable[Event], newest: dict[int, Piece], readers: Sequence[SequenceReader]) -> Iterator[Piece]:
    """Yield the pieces of `events` to show. `newest` has the last piece of each text, until the text is complete."""
    for event in events:
        if event.index not in newest:
            continue
        piece = newest[event.index] = readers[event.index].next(newest[event.index], event)
        if piece.finish_reason:
            del newest[event.index]
        if piece.is_shown:
            yield piece
