"""The front as `hfx serve` runs it, on a simulated network, and the connections of its callers."""

from __future__ import annotations

import asyncio
import io
import itertools
import math
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import pytest
import uvicorn

from hfx.front import __main__ as front_main
from hfx.front import inference
from hfx.front.connection import ClientConnection
from hfx.front.in_progress import Share
from hfx.front.settings import Settings
from hfx.front.upstream import UpstreamConnection
from tests.unit.simulation.network import Network, Transport


@dataclass(eq=False)
class Request:
    """A request of a caller for a `model`, and what became of it.

    `statuses` are those that its own contents justify. If `may_fail` is true, the caller itself did what ends a
    connection. A request `waits` so many seconds by its caller's own doing, also `behind` other requests. `status` is 0
    until an answer is complete, and `ended` is the time of that, or of the connection's end. `left` is the time at
    which the caller has left in a way that the front can see.
    """

    token: str
    statuses: tuple[int, ...] = (200,)
    label: str = ""
    kind: str = "generate"
    model: str = "a"
    sent: float = 0.0
    ended: float = 0.0
    status: int = 0
    body: bytes = b""
    may_fail: bool = False
    left: float = math.inf
    waits: float = 0.0
    behind: tuple[Request, ...] = ()
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Caller(asyncio.Protocol):
    """A caller's connection. Each complete answer belongs to the oldest request without one."""

    transport: Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.waiting: list[Request] = []
        self.is_over = self.is_closing = False
        self.opened = self.closed = math.inf  # times

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Transport, transport)
        self.opened = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self.closed = asyncio.get_running_loop().time()
        for request in self.waiting:
            request.ended = asyncio.get_running_loop().time()
            request.status = 0
            request.done.set()
        self.waiting.clear()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def send(self, request: Request, content: bytes) -> None:
        """Send a request."""
        request.sent = asyncio.get_running_loop().time()
        self.waiting.append(request)
        self.transport.write(content)

    def on_message_begin(self) -> None:
        assert self.waiting, "an answer without a request"

    def on_header(self, name: bytes, value: bytes) -> None:
        self.is_closing |= name.lower() == b"connection" and value == b"close"

    def on_body(self, body: bytes) -> None:
        self.waiting[0].body += body

    def on_message_complete(self) -> None:
        request = self.waiting.pop(0)
        request.status, request.ended = self._parser.get_status_code(), asyncio.get_running_loop().time()
        request.done.set()


@dataclass
class Front:
    """The objects of a front process, as its `main` made them."""

    server: Any
    listener: int
    background: int
    control: socket.socket

    @property
    def app(self) -> Any:
        return self.server._app

    def leaks(self) -> list[str]:
        """Return what is left of requests after the last one: slots, bytes, connections, counts."""
        app = self.app
        left = {
            "slots": app.in_progress.admitted,
            "bytes": app.in_progress._bytes,
            "shares": len(app.in_progress._shares),
            "connections": len(self.server.server_state.connections),
            "tasks": len(self.server.server_state.tasks),
            "free connections to Triton": len(app._upstream.free),
            "requests by path": sum(app._upstream._full._in_progress.values()),
            "requests by model": sum(model.in_flight for model in app._idle.models.values()) if app._idle else 0,
        }
        return [f"{number} {name}" for name, number in left.items() if number]


@contextmanager
def front(settings: dict[str, Any]) -> Iterator[Front]:
    """Yield a front of `settings`, made by the `main` of its process. Its server is not started."""
    made: list[Any] = []
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sockets = [socket.socket(), socket.socket(socket.AF_UNIX), *pair]
    listener, background, control, own = (each.detach() for each in sockets)
    numbers = itertools.count()
    text = Settings(listener=listener, background=background, control=control, **settings).to_json()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(text))
        patch.setattr(uvicorn.Server, "run", lambda server, *_: made.append(server))
        patch.setattr(front_main, "keep_little_freed_memory", lambda: None)
        patch.setattr(inference, "_ids", (f"front-{number}" for number in itertools.count()))
        for kind in (ClientConnection, Share, UpstreamConnection):  # sets of them have the same order in each run
            patch.setattr(kind, "__hash__", lambda self: self.__dict__.setdefault("_number", next(numbers)))
        front_main.main()
        [server] = made
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        watcher = socket.socket(fileno=own)
        watcher.setblocking(False)
        try:
            yield Front(server, listener, background, watcher)
        finally:
            watcher.close()
            server._control.close()
            batches = server._app._batches._upstream
            folders = [server._idle._commands] if server._idle else []
            for path in [*folders, batches._socket] if batches else folders:
                os.close(int(path.split("/")[4]))
            for descriptor in () if server.started else (listener, background):  # its own sockets have closed them
                os.close(descriptor)


async def connected(network: Network, front: Front) -> Caller:
    """Return a new connection of a caller."""
    _, caller = await network.connect(front.listener, Caller)
    return cast(Caller, caller)
