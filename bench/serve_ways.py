"""The ways that are measured, opened: a server with a client of it, and the engine in a process of its own.

Owns processes and what a turn of one costs. It must not know which loads there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.errors import CaseFailed, OpenFailed
from bench.peers.resident import Resident
from bench.serve_answers import Measured
from bench.serve_cases import Load
from bench.serve_cost import Cost, cost
from bench.serve_doors import open_client
from bench.serve_inside import PIECES, WHOLE, open_inside
from hfx.triton import EmbeddedServer

INSIDE = (WHOLE, PIECES)


@dataclass
class Ways:
    """The ways that are open: a server with a client of it, and the engine in a process of its own."""

    server: EmbeddedServer
    client: Resident
    inside: Resident

    def measured(self, way: str, load: Load) -> tuple[Measured, Cost]:
        """One turn, and what the server's processes used. Raises CaseFailed and OpenFailed."""
        if reason := self.server.fault():
            raise OpenFailed(reason)
        before = cost(self.server)
        found = (self.inside if way in INSIDE else self.client).answer((way, load))
        assert isinstance(found, Measured)
        if found.errors:
            raise CaseFailed(f"{len(found.errors)} of {len(load.asks)} requests failed: {found.errors[0]}")
        return found, cost(self.server).since(before)


@contextmanager
def opened(repository: Path) -> Iterator[Ways]:
    """The server with a client, and the engine in process."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(repository))
        yield Ways(
            server,
            stack.enter_context(_client(server)),
            stack.enter_context(Resident(open_inside, repository=str(repository))),
        )


def _client(server: EmbeddedServer) -> Resident:
    return Resident(open_client, grpc=server.grpc_url, http=server.http_url.removeprefix("http://"))


def alone(way: str, load: Load, repository: Path) -> Measured:
    """The first load that a way gets after its start."""
    with ExitStack() as stack:
        if way in INSIDE:
            resident = Resident(open_inside, repository=str(repository))
        else:
            resident = _client(stack.enter_context(EmbeddedServer(repository)))
        found = stack.enter_context(resident).answer((way, load))
        assert isinstance(found, Measured)
        return found
