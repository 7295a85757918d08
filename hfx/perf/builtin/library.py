"""A door by gRPC's own library: for TLS, and for servers that the plain connection does not suit."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hfx.client.address import Access, Address, Tls
from hfx.client.grpc_transport import DIRECT, OPTIONS
from hfx.perf.builtin.doors import CONNECT_SECONDS, INFER, LIVE, STREAM, WITH_STATUS, error, failure
from hfx.perf.builtin.records import Record


class Library:
    """See doors.Door."""

    def __init__(self, address: Address, access: Access, stream: bool, timeout: float) -> None:
        self._url = address.url
        self._timeout = timeout
        self._stream = stream
        self._headers = tuple(access.headers.items())
        self._channel = _opened(address, access.tls)
        self._call = self._channel.stream_stream(STREAM) if stream else self._channel.unary_unary(INFER)

    async def connect(self) -> None:
        """See Door."""
        call = self._channel.unary_unary(LIVE)
        try:
            await call(b"", timeout=CONNECT_SECONDS, metadata=self._headers)
        except grpc.RpcError as failed:
            raise error(*_told(failed), self._url, CONNECT_SECONDS) from failed

    async def ask(self, message: bytes, record: Record) -> None:
        """See Door."""
        record.sent = time.perf_counter()
        try:
            await (self._streamed(message, record) if self._stream else self._answered(message, record))
            record.end = record.times[-1] if record.times else time.perf_counter()
        except grpc.RpcError as failed:
            record.end = time.perf_counter()
            record.error = failure(*_told(failed), self._url, self._timeout)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            record.end = time.perf_counter()  # gRPC raises it for what the server has cancelled, too
            record.error = failure("CANCELLED", "the server ended it", self._url, self._timeout)

    async def close(self) -> None:
        """See Door."""
        await self._channel.close()

    async def _answered(self, message: bytes, record: Record) -> None:
        answer = await self._call(message, timeout=self._timeout, metadata=self._headers)
        record.times.append(time.perf_counter())
        record.messages.append(answer)

    async def _streamed(self, message: bytes, record: Record) -> None:
        call = self._call(timeout=self._timeout, metadata=(*self._headers, WITH_STATUS))
        await call.write(message)
        await call.done_writing()
        while (answer := await call.read()) is not grpc.aio.EOF:
            record.times.append(time.perf_counter())
            record.messages.append(answer)


def _told(failed: Any) -> tuple[str, str]:
    return failed.code().name, str(failed.details() or "")


def _opened(address: Address, tls: Tls | None) -> Any:
    options = (*OPTIONS, DIRECT) if address.is_loopback else OPTIONS
    if not address.secure:
        return grpc.aio.insecure_channel(address.target, options=options)
    tls = tls or Tls()
    files = (None if path is None else Path(path).read_bytes() for path in (tls.ca, tls.key, tls.certificate))
    return grpc.aio.secure_channel(address.target, grpc.ssl_channel_credentials(*files), options=options)
