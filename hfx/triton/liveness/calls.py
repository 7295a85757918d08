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
# The exceptions that are raised when no server answers, or when the answer is not a Triton server's.
NO_ANSWER = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError)


def call(
    url: str,
    body: bytes | None = None,
    timeout: float = CONNECT_SECONDS,
    connection: http.client.HTTPConnection | None = None,
) -> bytes:
    """Return the content at `url` (with POST if there is a `body`), without proxies.

    If a `connection` is given, it is used and stays open. Raises OSError or HTTPException if there is no content.
    """
    status, content = answer(url, body, timeout, connection)
    if status != http.client.OK:
        reason = content[:MAX_REFUSAL_BYTES].decode(errors="replace")
        raise http.client.HTTPException(f"{url} answers {status}: {reason}")
    return content


def answer(
    url: str,
    body: bytes | None = None,
    timeout: float = CONNECT_SECONDS,
    kept: http.client.HTTPConnection | None = None,
) -> tuple[int, bytes]:
    """Return status and content at `url`. Raises OSError or HTTPException if no HTTP server answers."""
    path = urlsplit(url).path
    with nullcontext(kept) if kept is not None else closing(connect(url, timeout)) as connection:
        connection.request("GET" if body is None else "POST", path, body, {} if body is None else JSON_HEADERS)
        answered = connection.getresponse()
        return answered.status, answered.read()


def socket_url(path: Path) -> str:
    """Return the URL of an HTTP server that listens at a Unix socket."""
    return f"{SOCKET_SCHEME}://{quote(str(path), safe='')}"


def connect(url: str, timeout: float) -> http.client.HTTPConnection:
    """Return a connection to the server of `url`. It opens when it is first used. Certificates are not checked."""
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
    """Connect to the Unix socket at `path`. The path may be longer than the 107 bytes that the kernel takes."""
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
