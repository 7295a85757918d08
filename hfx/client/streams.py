"""A text as it is generated, read piece by piece; a stream that is left early is cancelled on the server.

`Reading` is what both streams do: reading, retries and the end. TextStream blocks for it, AsyncTextStream awaits it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from hfx.client.calls import Call
from hfx.client.results import Generation, Piece, joined
from hfx.client.session import Session
from hfx.client.transport import Stream, run
from hfx.errors import ServerError, UsageError


class Reading:
    """The pieces of one call. It is sent with `open` or the first `next`."""

    def __init__(self, session: Session, name: str, call: Call[Piece], timeout: float | None) -> None:
        self._session = session
        self._name = name
        self._call = call
        self._deadline = session.deadline(timeout)
        self._stream: Stream | None = None
        self._id = ""
        self._pieces: list[Piece] = []
        self._ended = False

    @property
    def result(self) -> Generation:
        """What has been read; raises UsageError before the end."""
        if not self._ended:
            raise UsageError("The stream has not ended yet.", "Read it to its end, or cancel it, then ask.")
        return joined(self._pieces)

    async def open(self) -> None:
        """Send the call, unless it is under way; its errors come with the first piece."""
        if self._stream is None and not self._ended:
            await self._session.fitting(replace(self._call, model=self._name), self._deadline)
            request = await self._session.request(self._call, self._deadline)
            self._stream, self._id = self._session.transport.stream(request), request.id

    async def next(self) -> Piece | None:
        """The next piece, or None at the end."""
        if self._ended:
            return None
        try:
            return await self._next()
        except BaseException as error:
            cancelled = self._ended
            await self.close()
            if cancelled and isinstance(error, ServerError):
                return None
            raise

    async def close(self) -> None:
        """End it here and on the server."""
        self._ended = True
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    def cancel(self) -> None:
        """As `close`, from any place."""
        self._ended = True
        if self._stream is not None:
            self._stream.cancel()

    async def _next(self) -> Piece | None:
        if self._pieces:
            piece = await self._read()
        else:
            piece = await self._session.retries.call(self._first, self._deadline)
        if piece is None:
            await self.close()
            return None
        self._pieces.append(piece)
        self._session.warn_of_truncation(self._name, piece.truncated_tokens)
        return piece

    async def _first(self) -> Piece | None:
        try:
            await self.open()
            return await self._read()
        except ServerError:
            if self._stream is not None:
                await self._stream.close()
                self._stream = None  # the next attempt opens another
            raise

    async def _read(self) -> Piece | None:
        return await self._session.explained(self._name, self._id, self._deadline, self._decoded())

    async def _decoded(self) -> Piece | None:
        if self._stream is None:  # cancelled while it was opened
            return None
        outputs = await self._stream.read(self._session.limits.idle_timeout)
        if self._ended:
            return None
        if outputs is not None:
            return self._call.decode(outputs)
        if not (self._pieces and self._pieces[-1].finish_reason):
            raise ServerError("The stream ended without its last piece.", "See the server's log.")
        return None


class TextStream:
    """A context manager and iterator of Piece. Leaving it early, in any way, ends the request on the server.

    The whole stream must be done within the request's timeout, and each piece come within the client's idle_timeout
    (RequestTimeout). One thread reads; `cancel` may be called from any.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    @property
    def result(self) -> Generation:
        """The whole text with its counts and finish_reason, after the end; UsageError before."""
        return self._reading.result

    def cancel(self) -> None:
        """End the request; the reader gets no more pieces, and `result` is what had come."""
        self._reading.cancel()

    def close(self) -> None:
        """As `cancel`."""
        run(self._reading.close())

    def __enter__(self) -> Self:
        run(self._reading.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        piece = run(self._reading.next())
        if piece is None:
            raise StopIteration
        return piece

    def __del__(self) -> None:
        self._reading.cancel()


class AsyncTextStream:
    """An asynchronous context manager and iterator of Piece; else as TextStream."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    @property
    def result(self) -> Generation:
        """The whole text with its counts and finish_reason, after the end; UsageError before."""
        return self._reading.result

    def cancel(self) -> None:
        """End the request; the reader gets no more pieces, and `result` is what had come."""
        self._reading.cancel()

    async def close(self) -> None:
        """As `cancel`, and wait until it has ended."""
        await self._reading.close()

    async def __aenter__(self) -> Self:
        await self._reading.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._reading.close()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        piece = await self._reading.next()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __del__(self) -> None:
        self._reading.cancel()
