"""A server in memory that behaves as Triton's HTTP does: it answers, refuses, closes connections, and ends."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, cast

import httptools

from hfx.front.full_models import FULL
from tests.unit.simulation.network import Link, Listener, Network, Transport

ADDRESS = ("127.0.0.1", 8000)
URL = "http://127.0.0.1:8000"
TOKEN = re.compile(rb"token-[0-9]+-")
LONG = " " * 120_000  # of an answer to a body with this word
PIECES = 3  # of a stream
INPUTS = {"text_input": "STRING", "max_tokens": "INT32", "seed": "UINT64"}
OUTPUTS = {"text_output": "STRING", "finish_reason": "STRING", "input_tokens": "INT32", "output_tokens": "INT32"}


class Triton:
    """Answers each request to `models` with the token in its body, after at most `slow` seconds, beside the others.

    After an answer, it closes the connection with the probability `closes`. What it sends comes in pieces with the
    probability `splits`. Beside `slots` requests to a path, further
    ones are refused. `loaded` are the models in memory. `answered` are the times of answers, by token.
    `downs` are the times at which it ended, each with the time from which it was back.
    """

    def __init__(
        self,
        network: Network,
        models: Collection[str],
        slow: float,
        closes: float,
        slots: int = 1 << 30,
        splits: float = 0.1,
    ) -> None:
        self.network, self.slow, self.closes, self.slots = network, slow, closes, slots
        self.connections: dict[_Connection, None] = {}
        self.downs: list[list[float]] = []
        self.running = Counter[bytes]()  # requests, by path
        self.answered: dict[str, float] = {}
        self.loaded = {*models}
        network.links[ADDRESS] = Link(0.0002, splits)
        self.restarts_itself = True  # supervisor.py
        self.on_request: Callable[[], None] = lambda: None
        self._listener: Listener | None = None
        self.start()

    @property
    def is_up(self) -> bool:
        """Whether it takes connections."""
        return self._listener is not None and not self._listener.is_closed

    def stall(self) -> None:
        """Answer nothing on some of the connections until `go_on`, as their thread loads a model."""
        for connection in self.connections:
            if self.network.random.random() < 0.5:
                connection.transport.pause_reading()

    def go_on(self) -> None:
        """Answer on all connections."""
        for connection in self.connections:
            connection.transport.resume_reading()

    def start(self) -> None:
        """Take connections."""
        if self.downs:
            self.downs[-1][1] = self.network.now
        self._listener = Listener(self.network, ADDRESS, lambda: _Connection(self), self.network.links[ADDRESS])

    def end(self, seconds: float) -> None:
        """End as if killed, and start again after `seconds`, unless a supervisor does that."""
        if not self.is_up:
            return
        assert self._listener is not None
        self.downs.append([self.network.now, math.inf])
        self._listener.close()
        for connection in [*self.connections]:
            connection.transport.reset()
            connection.end()
        if self.restarts_itself:
            self.network.call_later(seconds, self.start)


class _Connection(asyncio.Protocol):
    transport: Transport

    def __init__(self, triton: Triton) -> None:
        self._triton = triton
        self._parser = httptools.HttpRequestParser(self)
        self._answering: asyncio.Task[None] | None = None
        self._path, self._body, self._headers = b"", b"", dict[bytes, bytes]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Transport, transport)
        self._triton.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def end(self) -> None:
        self._triton.connections.pop(self, None)
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._answering is None, "the front sent a request before the last one's answer was complete"
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._answering = self._triton.network.create_task(self._answer(self._path, self._body, self._headers))
        self._path, self._body, self._headers = b"", b"", {}

    async def _answer(self, path: bytes, body: bytes, headers: dict[bytes, bytes]) -> None:
        random, triton = self._triton.network.random, self._triton
        triton.on_request()
        triton.running[path] += 1
        try:
            if triton.running[path] > triton.slots and body:
                self._write(400, FULL[path.endswith(b"generate_stream")])
            else:
                if path.startswith(b"/v2/models"):
                    await asyncio.sleep(random.random() * random.choice((0.0, 0.01, triton.slow)))
                await self._answer_for_model(path, body)
        finally:
            triton.running[path] -= 1
            self._answering = None
        if headers.get(b"connection") == b"close" or random.random() < triton.closes:
            self.transport.close()

    async def _answer_for_model(self, path: bytes, body: bytes) -> None:
        triton = self._triton
        name = path.decode().split("/")[3].removesuffix("_stream") if path.startswith(b"/v2/models/") else ""
        if name and name not in triton.loaded:
            self._write(400, b"unknown model")
            return
        found = TOKEN.search(body)
        token = found[0].decode() if found else ""
        triton.answered[token] = triton.network.now
        content = json.dumps(self._content(path, name, token + LONG * (b"long" in body))).encode()
        if path.endswith(b"generate_stream"):
            await self._stream(b"data: %b\n\n" % content)
        else:
            self._write(200, b"" if path.startswith(b"/v2/health") else content)

    def _write(self, status: int, content: bytes) -> None:
        head = b"HTTP/1.1 %d Answer\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(head % (status, len(content)) + content)

    def _content(self, path: bytes, name: str, text: str) -> Any:
        """Return the JSON of the answer to a request to `path`, with the `text` that the model `name` writes."""
        if path == b"/v2/repository/index":
            return [{"name": model, "state": "READY"} for model in sorted(self._triton.loaded)]
        if path.endswith(b"/config"):
            return configuration(name)
        return {"text_output": text, "finish_reason": "stop", "input_tokens": 1, "output_tokens": 1}

    async def _stream(self, event: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.transport.write(head)
        for _ in range(PIECES):
            self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            await asyncio.sleep(self._triton.network.random.random() * 0.01)
        self.transport.write(b"0\r\n\r\n")


def configuration(name: str) -> dict[str, Any]:
    """Return the configuration of a generator."""
    inputs, outputs = (
        [{"name": tensor, "data_type": f"TYPE_{kind}", "dims": [1]} for tensor, kind in tensors.items()]
        for tensors in (INPUTS, OUTPUTS)
    )
    return {"name": name, "input": inputs, "output": outputs, "parameters": {}}
