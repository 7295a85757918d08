"""The doors of a served generator: plain gRPC calls, streams of pieces, and posts to the generate endpoint.

Owns which model and which call belongs to a door. A client of them runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench import serve_messages as messages
from bench.peers.posts import post_request
from bench.peers.resident import Prepare, Run
from bench.serve_answers import Piece, Record
from bench.serve_cases import Ask, Load
from bench.serve_driver import Door, drive
from bench.serve_http1 import Connections
from bench.serve_http2 import Connection
from bench.serve_model import NAME
from hfx import names

SERVICE = "/inference.GRPCInferenceService"


@dataclass(frozen=True)
class Form:
    """A gRPC call: its path, the request for an Ask, what an answer says."""

    path: str
    request: Callable[[Ask], bytes]
    read: Callable[[bytes], Piece]


UNARY = Form(f"{SERVICE}/ModelInfer", lambda ask: messages.infer_request(NAME, ask), messages.infer_answer)
STREAM = Form(
    f"{SERVICE}/ModelStreamInfer",  # a call for each request, as clients that may leave one alone do
    lambda ask: messages.stream_request(NAME + names.STREAM_SUFFIX, ask),
    messages.stream_answer,
)


class GrpcDoor:
    """Calls of one form, all on one connection."""

    def __init__(self, address: str, form: Form) -> None:
        self._address = address
        self._form = form
        self._connection: Connection | None = None

    async def connect(self, callers: int) -> None:
        """See Door."""
        if self._connection is None or self._connection.ended:
            host, _, port = self._address.rpartition(":")
            create = asyncio.get_running_loop().create_connection
            _, connection = await create(lambda: Connection(self._address), host, int(port))
            await connection.settled
            self._connection = connection

    def prepared(self, ask: Ask) -> bytes:
        """See Door."""
        return self._form.request(ask)

    async def send(self, request: bytes, record: Record) -> None:
        """See Door."""
        assert self._connection is not None
        await self._connection.call(self._form.path, request, record)

    def read(self, message: bytes) -> Piece:
        """See Door."""
        return self._form.read(message)


class PostDoor:
    """Posts of JSON, a connection for each caller."""

    def __init__(self, address: str, path: str, body: Callable[[Ask], bytes], read: Callable[[bytes], Piece]) -> None:
        self._address = address
        self._path = path
        self._body = body
        self._read = read
        self._connections = Connections(address)

    async def connect(self, callers: int) -> None:
        """See Door."""
        await self._connections.connect(callers)

    def prepared(self, ask: Ask) -> bytes:
        """See Door."""
        return post_request(self._address, self._path, self._body(ask))

    async def send(self, request: bytes, record: Record) -> None:
        """See Door."""
        await self._connections.post(request, record)

    def read(self, message: bytes) -> Piece:
        """See Door."""
        return self._read(message)


def _generate(address: str) -> PostDoor:
    path = f"/v2/models/{NAME}/generate"
    return PostDoor(address, path, messages.generate_request, messages.generate_answer)


UNARY_DOOR, STREAM_DOOR, HTTP_DOOR = "unary gRPC", "gRPC stream", "HTTP generate"
DOORS: Mapping[str, Callable[[str], Door]] = {
    UNARY_DOOR: lambda address: GrpcDoor(address, UNARY),
    STREAM_DOOR: lambda address: GrpcDoor(address, STREAM),
    HTTP_DOOR: _generate,
}


def open_client(grpc: str, http: str) -> Prepare:
    """A client of the server at these addresses (HOST:PORT); answers (door, load) with Measured."""
    return driven({name: door(http if name == HTTP_DOOR else grpc) for name, door in DOORS.items()})


def driven(doors: Mapping[str, Door]) -> Prepare:
    """Answers (door, load) with Measured, all in one event loop."""
    loop = asyncio.new_event_loop()
    gc.freeze()

    def prepare(case: tuple[str, Load]) -> Run:
        name, load = case
        return lambda: loop.run_until_complete(drive(doors[name], load))

    return prepare
