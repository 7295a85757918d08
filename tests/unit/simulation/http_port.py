"""A stream of requests on one connection to a simulated front, and what its upstream saw of it."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from hfx.front.settings import Limits
from tests.rigs.clients.http_streams import DIGITS, HEAD_LENGTH, LENGTH, MODEL, Read, Reader
from tests.unit.simulation.network import Link, Listener, Network, Transport
from tests.unit.simulation.triton import ADDRESS, URL, configuration
from tests.unit.simulation.virtual_loop import simulate
from tests.unit.simulation.world import front

LIMITS = Limits(head_seconds=1.0, pause_seconds=1.0, body_seconds=5.0, idle_seconds=2.0)
PROBE = b'{"text_input": "probe"}'
READY = b"/v2/health/ready"
HEALTH = (b"/health", READY)
OWN_ANSWERS = (*HEALTH, b"/metrics")  # which are not Triton's, or not alone
OWN = re.compile(rb"GET /v2/models/[^/ ]+/config ")  # a request of the front itself, which reads what a model takes
PASSED = (b"accept-encoding", b"traceparent", b"tracestate")  # a client's headers that are forwarded
WRITTEN = (b"host", LENGTH, HEAD_LENGTH)  # headers that the front itself writes
Answer = tuple[int, bytes]
LOST = (0, b"")  # an answer of which a reset may have cut a part, because bytes follow a connection's last request
Answering = Callable[[bytes], bytes]  # returns the bytes of a request's answer


def echo(request: bytes) -> bytes:
    """Answer a request of the front with its own bytes, and one for a configuration with that of a generator."""
    if OWN.match(request):
        request = json.dumps(configuration("echo")).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(request) + request


class Upstream(asyncio.Protocol):
    """A connection from the front. Each request must be one by the letter, and `answering` returns its answer."""

    transport: Transport

    def __init__(self, seen: Seen, answering: Answering) -> None:
        self._seen, self._answering, self._received = seen, answering, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        reader = Reader(self._received)
        assert not reader.is_malformed and not (reader.requests and reader.rest), self._received
        if reader.requests:
            [request] = reader.requests
            answer = self._answering(self._received)
            self._received = b""
            self._seen.forwarded.append((request, next(answers(answer, ()))))
            self.transport.write(answer)
            if request.header(b"connection"):
                self.transport.close()


class Client(asyncio.Protocol):
    """A client that sends no more, and reads until the front closes the connection."""

    def __init__(self) -> None:
        self.received = b""
        self.is_over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over.set()


@dataclass
class Seen:
    """The requests that the front forwarded, with their answers; the client's answers, and that to the probe."""

    forwarded: list[tuple[Read, Answer]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    probe: list[Answer] = field(default_factory=list)


class _Bytes(io.BytesIO):
    """Bytes that http.client takes for a socket, and for its file."""

    def makefile(self, mode: str) -> _Bytes:
        return self

    def close(self) -> None:
        pass


def answers(received: bytes, requests: Sequence[Read]) -> Iterator[Answer]:
    """Yield the status and the body of each answer to `requests` (of others: to a POST). Raises HTTPException."""
    file, place = _Bytes(received), 0
    while file.tell() < len(received):
        method = requests[place].method.decode() if place < len(requests) else "POST"
        answer = http.client.HTTPResponse(cast(Any, file), method=method)
        answer.begin()
        yield answer.status, answer.read()
        if method == "HEAD" and answer.getheader("connection") == "close":
            assert not re.search(rb"HTTP/1.1 [1-5]", received[file.tell() :]), "an answer follows the last one"
            return
        place += 1


def served(content: bytes, seed: int, connect: Callable[[], Answering] = lambda: echo) -> Seen:
    """Send `content` to a front, and then a probe on a new connection. `connect` connects to the server behind it."""
    network, seen = Network(Random(seed), stalls=0.0), Seen()
    with front({"upstream": URL, "metrics": URL, "limits": LIMITS}) as made:

        async def sent(stream: bytes) -> bytes:
            transport, client = await network.connect(made.listener, Client)
            transport.write(stream)
            await client.is_over.wait()
            return cast(bytes, client.received)

        async def main() -> None:
            network.links[ADDRESS] = Link(0.0002)
            network.links[made.listener] = Link(0.001, network.random.choice((0.0, 0.2, 0.9)))
            Listener(network, ADDRESS, lambda: Upstream(seen, connect()), network.links[ADDRESS])
            await made.server.startup()
            reader = Reader(content)
            is_cut = bool(reader.rest and reader.requests and reader.requests[-1].is_last)
            with suppress(*[http.client.HTTPException] * is_cut):
                seen.answers.extend(answers(await sent(content), reader.requests))
            if is_cut:
                seen.answers[-1:] = [LOST]
                seen.answers += [LOST] * (len(reader.requests) - len(seen.answers))
            head = b"POST %b/generate HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            seen.probe = [*answers(await sent(head % (MODEL, len(PROBE)) + PROBE), ())]
            await made.server.shutdown()
            assert not made.leaks()

        simulate(network, main())
    assert not network.failures, network.failures
    return seen


def text(request: Read) -> bytes:
    """Return the body of a request without its coding; of an infer request, the first string. Raises ValueError."""
    body, codings = request.body, [value.lower() for value in request.header(b"content-encoding")]
    if codings and codings[0] not in (b"", b"identity"):
        body = (gzip.decompress if codings[0] == b"gzip" else zlib.decompress)(body)
    if not request.path.removesuffix(b"/").endswith(b"/infer"):
        return body
    if not (lengths := request.header(HEAD_LENGTH)):
        return cast(str, json.loads(body)["inputs"][0]["data"][0]).encode()
    [length] = lengths
    if not DIGITS.fullmatch(length):
        raise ValueError(length)
    return body[int(length) + 4 :] if int(length) else body


def check(content: bytes, seen: Seen) -> int:
    """Check that each request was refused, or forwarded as it is and answered by its own answer; return their number.

    Raises AssertionError.
    """
    requests, forwarded = Reader(content).requests, list(seen.forwarded)
    probe, answer = forwarded.pop()
    assert (probe.body, [answer]) == (PROBE, seen.probe), "the probe got another answer"
    assert len(seen.answers) <= len(requests) + 1, "there are more answers than requests"
    count = 0
    for place, (status, body) in enumerate(seen.answers):
        request = requests[place] if place < len(requests) else None
        while forwarded and _is_own(forwarded[0][0]) and not is_same(request, forwarded[0][0]):
            forwarded.pop(0)
        if request and forwarded and is_same(request, forwarded[0][0]):
            _, answer = forwarded.pop(0)
            count += 1
            is_whole = status == 200 and request.path not in OWN_ANSWERS and request.method != b"HEAD"
            assert not is_whole or answer == (status, body), "the answer is another request's"
        else:
            assert status >= 400 or (status, body) == LOST, "a request was answered that was not there"
    assert all(_is_own(request) for request, _ in forwarded), "a request was forwarded that was not there"
    return count


def is_same(sent: Read | None, forwarded: Read) -> bool:
    """Return whether the front may forward the request `sent` so."""
    if sent is None or len(sent.header(b"host")) not in ((1,) if sent.version == b"1.1" else (0, 1)):
        return False
    path = READY if sent.path in HEALTH else sent.path if sent.path == b"/" else sent.path.removesuffix(b"/")
    try:
        content = text(sent)
    except (ValueError, LookupError, TypeError, OSError, EOFError, zlib.error):
        return False
    method = b"GET" if sent.method == b"HEAD" else sent.method
    passed = {header for header in forwarded.headers if header[0] not in WRITTEN}
    allowed = {header for header in sent.headers if header[0] in PASSED}
    allowed |= {(b"connection", b"close")} if path.endswith(b"generate_stream") else set()
    return passed <= allowed and (method, path, content) == (forwarded.method, forwarded.target, text(forwarded))


def _is_own(request: Read) -> bool:
    return OWN.match(b"%b %b " % (request.method, request.target)) is not None
