"""HTTP over TCP and over Unix sockets, without proxies."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from contextlib import closing, nullcontext
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

CONNECT_SECONDS = 5.0
MAX_REFUSAL_BYTES = 1 << 14
SOCKET_SCHEME = "unix"
JSON_HEADERS = {"Content-Type": "application/json"}
# What reading the answers of something that is no Triton server, or of none at all, raises.
NO_ANSWER = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError)


def call(
    url: str,
    body: bytes | None = None,
    timeout: float = CONNECT_SECONDS,
    connection: http.client.HTTPConnection | None = None,
) -> bytes:
    """The content at `url` (POST with a `body`), without proxies; OSError or HTTPException when there is none.

    On a `connection` that stays open, if there is one.
    """
    status, content = answer(url, body, timeout, connection)
    if status != http.client.OK:
        said = content[:MAX_REFUSAL_BYTES].decode(errors="replace")
        raise http.client.HTTPException(f"{url} answers {status}: {said}")
    return content


def answer(
    url: str,
    body: bytes | None = None,
    timeout: float = CONNECT_SECONDS,
    kept: http.client.HTTPConnection | None = None,
) -> tuple[int, bytes]:
    """Status and content at `url`; OSError or HTTPException when no HTTP server answers."""
    path = urlsplit(url).path
    with nullcontext(kept) if kept is not None else closing(connect(url, timeout)) as connection:
        connection.request("GET" if body is None else "POST", path, body, {} if body is None else JSON_HEADERS)
        answered = connection.getresponse()
        return answered.status, answered.read()


def socket_url(path: Path) -> str:
    """The URL of an HTTP server that listens at a Unix socket."""
    return f"{SOCKET_SCHEME}://{quote(str(path), safe='')}"


def connect(url: str, timeout: float) -> http.client.HTTPConnection:
    """A connection to the server of `url`, made when it is used. Certificates are not checked."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(parts.netloc, timeout=timeout, context=context)
    kind = _SocketConnection if parts.scheme == SOCKET_SCHEME else http.client.HTTPConnection
    return kind(parts.netloc, timeout=timeout)


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket whose quoted path is the host."""

    def connect(self) -> None:
        self.sock = connect_socket(Path(unquote(self.host)), self.timeout)


def connect_socket(path: Path, timeout: float | None) -> socket.socket:
    """A connection to the Unix socket at `path`, however long that is (the kernel takes 107 bytes)."""
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH)
    try:
        connection.settimeout(timeout)
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection
