"""A door without the library: calls on one plain connection, which is made anew when it broke."""

from __future__ import annotations

import asyncio
import time

from hfx.client.address import Access, Address
from hfx.perf.builtin.doors import CONNECT_SECONDS, INFER, LIVE, STREAM, WITH_STATUS, error, failure
from hfx.perf.builtin.headers import request_block
from hfx.perf.builtin.http2 import CallFailed, Connection
from hfx.perf.builtin.records import Record

LONGEST_TIMEOUT = 99_999_999  # milliseconds that gRPC's header can say


class Plain:
    """See doors.Door."""

    def __init__(self, address: Address, access: Access, stream: bool, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        limit = ("grpc-timeout", f"{min(max(1, round(1000 * timeout)), LONGEST_TIMEOUT)}m")
        headers = (*access.headers.items(), *((WITH_STATUS,) if stream else ()), limit)
        self._block = request_block(STREAM if stream else INFER, address.target, headers)
        self._live = request_block(LIVE, address.target, access.headers.items())

    async def connect(self) -> None:
        """See Door."""
        try:
            connection = await self._connected()
            await connection.call(self._live, b"", Record(-1, 0.0), CONNECT_SECONDS)
            if not connection.fits:
                raise CallFailed("UNKNOWN", "it takes few calls at a time")
        except CallFailed as failed:
            raise error(failed.status, failed.words, self._address.url, CONNECT_SECONDS) from None

    async def ask(self, message: bytes, record: Record) -> None:
        """See Door."""
        connection = self._connection
        record.sent = time.perf_counter()
        try:
            if connection is None or connection.ended:
                connection = await self._connected()
            await connection.call(self._block, message, record, self._timeout)
        except CallFailed as failed:
            record.end = time.perf_counter()
            record.error = failure(failed.status, failed.words, self._address.url, self._timeout)

    async def close(self) -> None:
        """See Door."""
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.ended:
                self._connection = await self._opened()
            return self._connection

    async def _opened(self) -> Connection:
        create = asyncio.get_running_loop().create_connection
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await create(Connection, self._address.host, self._address.port)
                await asyncio.shield(connection.settled)
        except TimeoutError:
            raise CallFailed("UNAVAILABLE", f"no connection within {CONNECT_SECONDS:g} s") from None
        except OSError as refused:
            raise CallFailed("UNAVAILABLE", refused.strerror or str(refused)) from None
        return connection
