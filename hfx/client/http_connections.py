"""What HTTP connections carry, and what the two ways of waiting at them share.

httpx's own timeouts are those of single waits; here a whole answer has a deadline. Nothing here knows what bodies mean.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from hfx.client.address import Access, Address, Tls

LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)


@dataclass(frozen=True)
class Sent:
    """A request to be sent: its path, and what it carries. Without a body it is a GET."""

    path: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def method(self) -> str:
        """GET or POST."""
        return "GET" if self.body is None else "POST"


@dataclass(frozen=True)
class Received:
    """An answer."""

    status: int
    headers: Any
    body: bytes


class Late(Exception):
    """The answer was not complete in time."""


class Lines(Protocol):
    """The lines of an answer."""

    async def open(self, timeout: float) -> Received | None:
        """Send the request; an answer that is an error comes whole, None is a good one's beginning."""

    async def next(self, timeout: float) -> str | None:
        """The next line, None at the end; raises Late."""

    async def close(self) -> None:
        """Let go of the connection."""

    def cancel(self) -> None:
        """As `close`, from any place."""


class Connection(Protocol):
    """Connections to a server."""

    async def fetch(self, sent: Sent, timeout: float) -> Received:
        """The whole answer; raises Late."""

    def lines(self, sent: Sent) -> Lines:
        """The answer line by line."""

    async def close(self) -> None:
        """Close all connections."""


def request_for(client: Any, sent: Sent, timeout: float) -> httpx.Request:
    """SENT as CLIENT sends it."""
    request: httpx.Request = client.build_request(
        sent.method, sent.path, content=sent.body, headers=sent.headers, timeout=timeout
    )
    return request


def hang_up(connection: Any) -> None:
    """End a connection from any thread: a wait for its next byte, too, ends at once."""
    found = connection.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)


def options_of(address: Address, access: Access) -> dict[str, Any]:
    """The arguments of both of httpx's clients."""
    scheme = "https" if address.secure else "http"
    return {
        "base_url": f"{scheme}://{address.target}",
        "headers": dict(access.headers),
        "limits": LIMITS,
        # A proxy of the environment can't reach this machine's own ports.
        "trust_env": not address.is_loopback,
        "verify": _context(access.tls or Tls()) if address.secure else True,
    }


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
    if tls.certificate is not None:
        context.load_cert_chain(str(tls.certificate), str(tls.key))
    return context
