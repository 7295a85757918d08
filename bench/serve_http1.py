"""Plain posts on connections that are kept, noted as a load's records are."""

from __future__ import annotations

import time

from bench.peers.posts import Connection, connected
from bench.serve_answers import Record


class Connections:
    """As many connections to a server as requests are under way."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._free: list[Connection] = []
        self._count = 0

    async def connect(self, count: int) -> None:
        """Have at least so many."""
        while self._count < count:
            self._free.append(await connected(self._address))
            self._count += 1

    async def post(self, request: bytes, record: Record) -> None:
        """Send it on a free connection, and note the answer."""
        connection = self._free.pop()
        body = await connection.post(request)
        record.messages.append((time.perf_counter(), body))
        self._free.append(connection)  # one that failed is not used again
