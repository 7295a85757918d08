"""A network in memory for a VirtualLoop: TCP's promises, and its faults by the loop's seed.

Bytes arrive in order, in pieces, and late. A side may end its direction, reset the connection, or send nothing more.
Buffers are bounded, so that a peer that does not read stops the writer. What arrives at a closed side is answered with
a reset, which discards what the sender has not read yet, as a kernel does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.unit.simulation.virtual_loop import VirtualLoop

HIGH_WATER = 1 << 16
Factory = Callable[[], asyncio.BaseProtocol]


@dataclass(frozen=True)
class Link:
    """What connections to an address are like.

    `delay` is the longest delay in seconds, `splits` the probability that what is sent arrives in several pieces, and
    `room` the kernel's buffer in bytes.
    """

    delay: float = 0.001
    splits: float = 0.1
    room: int = 1 << 16


class Listener:
    """A listening address of a network."""

    def __init__(self, network: Network, address: object, factory: Factory, link: Link) -> None:
        self.factory, self.link = factory, link
        self.sockets = ()
        self.is_closed = False
        self._network, self._address = network, address
        network.servers[address] = self

    def close(self) -> None:
        """Refuse connections from now on."""
        self.is_closed = True
        if self._network.servers.get(self._address) is self:
            del self._network.servers[self._address]

    async def wait_closed(self) -> None:
        """Return at once, as Python 3.11 does."""


@dataclass(frozen=True)
class Names:
    """What a socket says of itself. Without a descriptor, httpx uses no connection twice."""

    own: tuple[str, int]
    peer: tuple[str, int]
    family: int = socket.AF_INET

    def getsockname(self) -> tuple[str, int]:
        return self.own

    def getpeername(self) -> tuple[str, int]:
        return self.peer

    def fileno(self) -> int:
        return -1


class Transport(asyncio.Transport):
    """One side of a connection in memory. `peer` is the other side."""

    peer: Transport

    _protocol: asyncio.Protocol

    def __init__(self, loop: VirtualLoop, link: Link, names: Names) -> None:
        super().__init__({"socket": names})
        self._loop, self._link = loop, link
        self._unsent = bytearray()
        self._in_kernel = 0  # bytes sent that the peer's program has not read
        self._received = bytearray()
        self._last_arrival = 0.0
        self._has_ended = False  # this side sends no more
        self._sent_end = False
        self._peer_ended: BaseException | bool = False
        self._paused = self._blocked = self._closing = self.is_lost = self.is_gone = self._begun = False
        self._is_silent = False
        self._high = HIGH_WATER

    def begin(self, protocol: asyncio.BaseProtocol, connected: Callable[[], None] = lambda: None) -> None:
        """Connect the program's `protocol`, as asyncio does: reading begins after connection_made."""
        self._protocol = cast(asyncio.Protocol, protocol)
        self._loop.call_soon(protocol.connection_made, self)
        self._loop.call_soon(self._start_reading)
        self._loop.call_soon(connected)

    def _start_reading(self) -> None:
        self._begun = True
        self._poll()

    # asyncio's interface

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._poll()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._has_ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        if isinstance(self._peer_ended, BaseException):
            self._fail(self._peer_ended)
        if self.is_lost or (self._closing and not self._unsent):
            return
        self._unsent += data
        self._send()
        if len(self._unsent) > self._high and not self._blocked:
            self._blocked = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        if not self._closing and not self._has_ended:
            self._has_ended = True
            self._send()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._fail(None)

    # The kernel

    def _send(self) -> None:
        """Give the kernel what it has room for."""
        random = self._loop.random.random
        while self._unsent and self._in_kernel < self._link.room and not self.is_gone:
            size = min(len(self._unsent), self._link.room - self._in_kernel)
            if random() < self._link.splits:
                size = 1 + int(random() * (size - 1))
            piece = bytes(self._unsent[:size])
            del self._unsent[:size]
            self._in_kernel += size
            self._arrive(lambda piece=piece: self.peer._take(piece))  # type: ignore[misc]
        if self._has_ended and not self._unsent and not self._sent_end:
            self._sent_end = True
            self._arrive(lambda: self.peer._end(True))

    def _arrive(self, event: Callable[[], None]) -> None:
        """Have `event` happen at the peer after a delay, and after all that was sent before."""
        if self._is_silent:
            return
        delay = self._link.delay * max(0.0, 1.5 * self._loop.random.random() - 0.5)  # a third come at once
        self._last_arrival = max(self._last_arrival, self._loop.now + delay)
        self._loop.happen(self._last_arrival - self._loop.now, event)

    def _take(self, piece: bytes) -> None:
        if self.is_gone:
            self._arrive(lambda: self.peer._end(ConnectionResetError()))
            return
        self._received += piece
        self._poll()

    def _end(self, how: BaseException | bool) -> None:
        """Note the end of what the peer sends: True, or the error of a reset."""
        if self._peer_ended is False or how is not True:
            self._peer_ended = how
            if how is not True:
                self._received.clear()
                if self._unsent:
                    self._loop.wake(self._write_more)
            self._poll()

    def fall_silent(self) -> None:
        """Have the network drop all that this side sends from now on."""
        self._is_silent = True

    def reset(self) -> None:
        """Break the connection, as a network or a dying process does. Both sides may notice."""
        for side in (self, self.peer):
            side._loop.happen(0.0, lambda side=side: side._end(ConnectionResetError()))  # type: ignore[misc]

    # The program

    def _poll(self) -> None:
        if (self._received or self._peer_ended is not False) and self._begun and not self._paused:
            self._loop.wake(self._read)

    def _read(self) -> None:
        if self._closing and isinstance(self._peer_ended, BaseException):
            self._fail(self._peer_ended)  # what is left to write has no reader
        if self._paused or self._closing:
            return
        if isinstance(self._peer_ended, BaseException):
            self._fail(self._peer_ended)
        elif self._received:
            data = bytes(self._received)
            self._received.clear()
            self.peer._was_read(len(data))
            try:
                self._protocol.data_received(data)
            except Exception as error:
                self._loop.call_exception_handler({"message": "data_received failed", "exception": error})
                self._fail(error)
            self._poll()
        elif self._peer_ended:
            self._peer_ended = False
            if not self._protocol.eof_received():
                self.close()

    def _was_read(self, size: int) -> None:
        """Note that the peer's program has read `size` bytes, which makes room."""
        self._in_kernel -= size
        if self._unsent and not self.is_gone:
            self._loop.wake(self._write_more)

    def _write_more(self) -> None:
        if isinstance(self._peer_ended, BaseException):
            self._fail(self._peer_ended)
            return
        self._send()
        if self._blocked and len(self._unsent) <= self._high // 4 and not self.is_lost:
            self._blocked = False
            self._protocol.resume_writing()
        if self._closing and not self._unsent and not self.is_lost:
            self._lose(None)

    def _fail(self, error: BaseException | None) -> None:
        if self.is_lost:
            return
        self._unsent.clear()
        self._closing = self.is_lost = True
        self._loop.call_soon(self._lose, error)

    def _lose(self, error: BaseException | None) -> None:
        if self.is_gone:
            return
        self.is_lost = self.is_gone = True
        try:
            self._protocol.connection_lost(cast(Any, error))
        finally:
            if self._received:
                self._arrive(lambda: self.peer._end(ConnectionResetError()))
            elif not self._sent_end:
                self._sent_end = True
                self._arrive(lambda: self.peer._end(True))


class Network(VirtualLoop):
    """A VirtualLoop with connections in memory. `links` has what connections to an address are like."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.links: dict[object, Link] = {}
        self.servers: dict[object, Listener] = {}
        self.aliases: dict[object, object] = {}  # other addresses of servers
        self.transports: list[Transport] = []
        self.is_calm = False  # faults have ended

    async def create_server(self, factory: Factory, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Listen at the number of the given socket's descriptor, or at (host, port)."""
        sock = options.get("sock")
        address = (host, port) if sock is None else sock.fileno()
        return Listener(self, address, factory, self.links.get(address, Link()))

    async def create_unix_server(self, factory: Factory, path: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Listen at the number of the given socket's descriptor, or at the name of a path."""
        return await self.create_server(factory, "", Path(path or "").name, **options)

    async def create_connection(self, factory: Factory, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Connect to (host, port). Raises ConnectionRefusedError if no server listens there."""
        return await self.connect((host, port), factory)

    async def create_unix_connection(self, factory: Factory, path: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Connect to the server with the name of `path`. Raises ConnectionRefusedError if there is none."""
        return await self.connect(("", Path(path).name), factory)

    async def connect(self, address: object, factory: Factory) -> tuple[Transport, Any]:
        """Return the transport and the protocol of a new connection to `address`."""
        listener = self.servers.get(self.aliases.get(address, address))
        if listener is None:
            await asyncio.sleep(0)
            raise ConnectionRefusedError(111, "Connection refused")
        arrived = self.create_future()
        self.happen(listener.link.delay * self.random.random(), lambda: self.wake(lambda: _set(arrived)))
        await arrived
        ports = ("127.0.0.1", 40_000 + len(self.transports)), ("127.0.0.1", 80)
        near, far = (Transport(self, listener.link, Names(*names)) for names in (ports, ports[::-1]))
        near.peer, far.peer = far, near
        self.transports += near, far
        self.happen(listener.link.delay * self.random.random(), lambda: self.wake(lambda: self._accept(listener, far)))
        protocol, connected = factory(), self.create_future()
        near.begin(protocol, lambda: _set(connected))
        try:
            await connected
        except BaseException:
            near.close()
            raise
        return near, protocol

    def _accept(self, listener: Listener, far: Transport) -> None:
        if listener.is_closed:
            far.reset()
        else:
            far.begin(listener.factory())


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
