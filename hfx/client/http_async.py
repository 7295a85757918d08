"""HTTP connections whose waits are asyncio's.

This file must not know what bodies mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx

from hfx.client.address import Access, Address
from hfx.client.http_connections import Late, Lines, Received, Sent, hang_up, options_of, request_for


class AsyncConnection:
    """Connections whose waits are asyncio's; of one event loop."""

    def __init__(self, address: Address, access: Access) -> None:
        self._client = httpx.AsyncClient(**options_of(address, access))
        self._closings: set[asyncio.Task[None]] = set()

    async def fetch(self, sent: Sent, timeout: float) -> Received:
        """The whole answer; raises Late."""
        try:
            async with asyncio.timeout(timeout):
                answer = await self._client.send(request_for(self._client, sent, timeout))
        except (TimeoutError, httpx.TimeoutException):
            raise Late from None
        return Received(answer.status_code, answer.headers, answer.content)

    def lines(self, sent: Sent) -> Lines:
        """The answer line by line."""
        return _AsyncLines(self, sent)

    async def send(self, sent: Sent, timeout: float) -> httpx.Response:
        """The answer's beginning."""
        return await self._client.send(request_for(self._client, sent, timeout), stream=True)

    def close_later(self, answer: httpx.Response) -> None:
        """Close ANSWER by a task of its own."""
        task = asyncio.get_running_loop().create_task(answer.aclose())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class _AsyncLines:
    def __init__(self, connection: AsyncConnection, sent: Sent) -> None:
        self._connection = connection
        self._sent = sent
        self._loop = asyncio.get_running_loop()
        self._answer: httpx.Response | None = None
        self._lines: AsyncIterator[str] | None = None

    async def open(self, timeout: float) -> Received | None:
        try:
            async with asyncio.timeout(timeout):
                self._answer = answer = await self._connection.send(self._sent, timeout)
                if not answer.is_success:
                    return Received(answer.status_code, answer.headers, await answer.aread())
        except (TimeoutError, httpx.TimeoutException):
            raise Late from None
        self._lines = answer.aiter_lines()
        return None

    async def next(self, timeout: float) -> str | None:
        assert self._lines is not None
        try:
            async with asyncio.timeout(timeout):
                return await anext(self._lines, None)
        except (TimeoutError, httpx.TimeoutException):
            raise Late from None

    async def close(self) -> None:
        if self._answer is not None:
            await self._answer.aclose()

    def cancel(self) -> None:
        if self._answer is not None and not self._loop.is_closed():
            hang_up(self._answer.extensions["network_stream"])
            self._loop.call_soon_threadsafe(self._connection.close_later, self._answer)
