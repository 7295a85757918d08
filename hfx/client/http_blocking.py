"""HTTP connections whose waits block the thread; whoever waits is woken when they are closed.

This file must not know what bodies mean.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from hfx.client.address import Access, Address
from hfx.client.http_connections import Late, Lines, Received, Sent, hang_up, options_of, request_for

# httpcore's names for the moments when a connection is there.
CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


class BlockingConnection:
    """Connections whose waits block the thread."""

    def __init__(self, address: Address, access: Access) -> None:
        self._client = httpx.Client(**options_of(address, access))
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()

    async def fetch(self, sent: Sent, timeout: float) -> Received:
        """The whole answer; raises Late."""
        end = time.monotonic() + timeout
        try:
            answer = self.send(sent, timeout)
            try:
                return Received(answer.status_code, answer.headers, b"".join(_until(end, answer.iter_bytes())))
            finally:
                answer.close()
        except httpx.TimeoutException:
            raise Late from None

    def send(self, sent: Sent, timeout: float) -> httpx.Response:
        """The answer's beginning."""
        request = request_for(self._client, sent, timeout)
        request.extensions["trace"] = self._trace
        return self._client.send(request, stream=True)

    def lines(self, sent: Sent) -> Lines:
        """The answer line by line."""
        return _BlockingLines(self, sent)

    async def close(self) -> None:
        """Close all connections; threads that wait at one are woken."""
        for connection in tuple(self._connections):
            hang_up(connection)
        self._client.close()

    def _trace(self, event: str, found: Mapping[str, Any]) -> None:
        if event in CONNECTED:
            self._connections.add(found["return_value"])


class _BlockingLines:
    def __init__(self, connection: BlockingConnection, sent: Sent) -> None:
        self._connection = connection
        self._sent = sent
        self._answer: httpx.Response | None = None
        self._lines: Iterator[str] = iter(())

    async def open(self, timeout: float) -> Received | None:
        try:
            self._answer = answer = self._connection.send(self._sent, timeout)
            if answer.is_success:
                self._lines = answer.iter_lines()
                return None
            return Received(answer.status_code, answer.headers, answer.read())
        except httpx.TimeoutException:
            raise Late from None

    async def next(self, timeout: float) -> str | None:
        try:
            return next(self._lines, None)
        except httpx.TimeoutException:
            raise Late from None

    async def close(self) -> None:
        if self._answer is not None:
            self._answer.close()

    def cancel(self) -> None:
        if self._answer is not None:
            hang_up(self._answer.extensions["network_stream"])
            # Elsewhere: this may be the garbage collector, in the midst of what it would wait for.
            threading.Thread(target=self._answer.close, name="hfx-client-close", daemon=True).start()


def _until(end: float, parts: Iterator[bytes]) -> Iterator[bytes]:
    for part in parts:
        if time.monotonic() > end:
            raise Late
        yield part
