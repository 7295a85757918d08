"""A gRPC channel, in the two ways of waiting: a message out, one or many in.

Whatever ends a wait early (a deadline, Ctrl-C, a cancelled task, the garbage collector) also ends the call on the
server. This file must not know what messages mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from hfx.client import failures
from hfx.client.address import Access, Address, Tls
from hfx.client.alarm import Alarm
from hfx.client.waiting import interruptible

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Finding a server that comes up is the retries' business: the channel must not make them wait for its own back-off.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
DIRECT = ("grpc.enable_http_proxy", 0)  # a proxy of the environment can't reach this machine's own ports
# Without it, Triton sends an error within a stream as words only, and leaves the stream open.
WITH_STATUS = ("triton_grpc_error", "true")


class Still(Exception):
    """Nothing has come for too long."""


class Messages(Protocol):
    """The messages that answer one."""

    async def read(self, timeout: float) -> Any:
        """The next message, None after the last; raises Still."""

    def cancel(self) -> None:
        """End the call."""


class Channel(Protocol):
    """A channel to a server."""

    async def unary(self, method: str, message: Any, timeout: float) -> Any:
        """The answer to MESSAGE."""

    def stream(self, method: str, message: Any, timeout: float) -> Messages:
        """The answers to MESSAGE."""

    async def close(self) -> None:
        """Close the channel; calls under way end with an error."""


class BlockingChannel:
    """A channel whose waits block the thread."""

    def __init__(self, address: Address, access: Access) -> None:
        self._channel = _open(grpc, address, access.tls)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._headers = tuple(access.headers.items())
        self._alarm = Alarm()

    async def unary(self, method: str, message: Any, timeout: float) -> Any:
        """The answer to MESSAGE."""
        call = getattr(self._stub, method).future(message, timeout=timeout, metadata=self._headers)
        with interruptible(call.cancel):
            return call.result()

    def stream(self, method: str, message: Any, timeout: float) -> Messages:
        """The answers to MESSAGE."""
        headers = (*self._headers, WITH_STATUS)
        call = getattr(self._stub, method)(iter((message,)), timeout=timeout, metadata=headers)
        return _BlockingMessages(call, self._alarm)

    async def close(self) -> None:
        """Close the channel; calls under way end with an error."""
        self._channel.close()


class _BlockingMessages:
    def __init__(self, call: Any, alarm: Alarm) -> None:
        self._call = call
        self._alarm = alarm
        self._still = False

    async def read(self, timeout: float) -> Any:
        try:
            with self._alarm.after(timeout, self._give_up), interruptible(self._call.cancel):
                return next(self._call, None)
        except grpc.RpcError:
            if self._still:
                raise Still from None
            raise

    def cancel(self) -> None:
        self._call.cancel()

    def _give_up(self) -> None:
        self._still = True
        self._call.cancel()


class AsyncChannel:
    """A channel whose waits are asyncio's; of one event loop."""

    def __init__(self, address: Address, access: Access) -> None:
        self._channel = _open(grpc.aio, address, access.tls)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._headers = tuple(access.headers.items())
        self._url = address.url

    async def unary(self, method: str, message: Any, timeout: float) -> Any:
        """The answer to MESSAGE."""
        call = getattr(self._stub, method)(message, timeout=timeout, metadata=self._headers)
        return await self._outcome(call, call)

    def stream(self, method: str, message: Any, timeout: float) -> Messages:
        """The answers to MESSAGE."""
        headers = (*self._headers, WITH_STATUS)
        call = getattr(self._stub, method)(iter((message,)), timeout=timeout, metadata=headers)
        return _AsyncMessages(self, call)

    async def close(self) -> None:
        """Close the channel; calls under way end with an error."""
        await self._channel.close()

    async def _outcome(self, call: Any, answer: Any) -> Any:
        """What is awaited of CALL. gRPC raises CancelledError too where it was the channel that was closed."""
        try:
            return await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not call.cancelled():
                raise
            raise failures.closed(self._url) from None


class _AsyncMessages:
    def __init__(self, channel: AsyncChannel, call: Any) -> None:
        self._channel = channel
        self._call = call

    async def read(self, timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout):
                message = await self._channel._outcome(self._call, self._call.read())
        except TimeoutError:
            self._call.cancel()
            raise Still from None
        return None if message is grpc.aio.EOF else message

    def cancel(self) -> None:
        self._call.cancel()


def _open(library: Any, address: Address, tls: Tls | None) -> Any:
    options: Sequence[tuple[str, int]] = (*OPTIONS, DIRECT) if address.is_loopback else OPTIONS
    if not address.secure:
        return library.insecure_channel(address.target, options=options)
    tls = tls or Tls()
    credentials = grpc.ssl_channel_credentials(_content(tls.ca), _content(tls.key), _content(tls.certificate))
    return library.secure_channel(address.target, credentials, options=options)


def _content(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
