"""Streams, which read a text piece by piece as it is generated. Leaving a stream early cancels it on the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Self

from hfx.client.calls import Call
from hfx.client.results import Generation, Piece, joined
from hfx.client.session import Session
from hfx.client.transport import Stream, run
from hfx.errors import ServerError, UsageError


class _Reader:
    """The base class of both streams: reads the pieces of one call, which `_open` or the first `_next` sends."""

    def __init__(self, session: Session, name: str, call: Call[Piece], timeout: float | None) -> None:
        self._ended = False
        self._stream: Stream | None = None
        self._session = session
        self._name = name
        self._call = call
        self._id = ""
        self._pieces: list[Piece] = []
        self._deadline = session.deadline(timeout)

    @property
    def result(self) -> Generation:
        """The whole text with its counts and finish reason. Raises UsageError until the stream has ended."""
        if not self._ended:
            raise UsageError("The stream has not ended yet.", "Read it to its end, or cancel it, then ask.")
        return joined(self._pieces)

    def cancel(self) -> None:
        """End the request, from any thread. The reader gets no more pieces; `result` has the pieces read so far."""
        self._ended = True
        if self._stream is not None:
            self._stream.cancel()

    def __del__(self) -> None:
        self.cancel()

    async def _open(self) -> None:
        """Send the call, unless it is already in progress. Its errors are raised with the first piece."""
        if self._stream is None and not self._ended:
            await self._session.checked_model(replace(self._call, model=self._name), self._deadline)
            request = await self._session.request(self._call, self._deadline)
            self._stream, self._id = self._session.transport.stream(request), request.id

    async def _next(self) -> Piece | None:
        """Return the next piece, or None at the end."""
        if self._ended:
            return None
        try:
            if self._pieces:
                piece = await self._read()
            else:
                piece = await self._session.retries.call(self._read_first, self._deadline)
            if piece is None:
                await self._close()
                return None
            self._pieces.append(piece)
            self._session.warn_of_truncation(self._name, piece.truncated_tokens)
            return piece
        except BaseException as error:
            cancelled = self._ended
            await self._close()
            if cancelled and isinstance(error, ServerError):
                return None
            raise

    async def _close(self) -> None:
        self._ended = True
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _read_first(self) -> Piece | None:
        try:
            await self._open()
            return await self._read()
        except ServerError:
            if self._stream is not None:
                await self._stream.close()
                self._stream = None  # the next attempt opens another
            raise

    async def _read(self) -> Piece | None:
        return await self._session.explain_errors(self._name, self._id, self._deadline, self._decoded())

    async def _decoded(self) -> Piece | None:
        if self._stream is None:  # cancelled while it was opened
            return None
        outputs = await self._stream.read(self._session.limits.idle_timeout)
        if self._ended:
            return None
        if outputs is not None:
            return self._call.result(outputs)
        if not (self._pieces and self._pieces[-1].finish_reason):
            raise ServerError("The stream ended without its last piece.", "See the server's log.")
        return None


class TextStream(_Reader):
    """A context manager and iterator of Piece. Leaving it early, in any way, ends the request on the server.

    Raises RequestTimeout unless the whole stream is done within the request's timeout, and each piece arrives within
    the client's `idle_timeout`. One thread reads the stream; any thread may call `cancel`. After the end, `result` is
    the whole text.
    """

    def close(self) -> None:
        """End the stream, as `cancel` does."""
        run(self._close())

    def __enter__(self) -> Self:
        run(self._open())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        piece = run(self._next())
        if piece is None:
            raise StopIteration
        return piece


class AsyncTextStream(_Reader):
    """An asynchronous context manager and iterator of Piece; otherwise like TextStream."""

    async def close(self) -> None:
        """Cancel the request, and return when it has ended."""
        await self._close()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        piece = await self._next()
        if piece is None:
            raise StopAsyncIteration
        return piece
