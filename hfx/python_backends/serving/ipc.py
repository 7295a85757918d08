"""JSON messages between a relay and its engine, over a Unix socket.

Triton's own calls between models (BLS) are not used: Triton 2.51 makes the Python objects of their responses in threads
that don't hold the GIL, so a process with concurrent calls crashes sooner or later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

NAMESPACE = Path("/proc/self/ns/pid")
CONNECT_SECONDS = 5.0  # a stopped engine accepts no connection once its backlog is full
PUBLICATION_FILE = ".publication"
HEADER = struct.Struct("<Q")  # the length of the message that follows
CREDENTIALS = struct.Struct("3i")  # process, user, group: unix(7), SO_PEERCRED


def publication(model_folder: str | Path) -> str:
    """Return the id of the publication in a model's folder, which is the same for a relay and its engine.

    There may be two publications at a time, while a model is replaced in a running server. The id is empty if the
    folder has none.
    """
    path = Path(model_folder) / PUBLICATION_FILE
    return path.read_text() if path.exists() else ""


def address(engine: str, published: str = "", server: int | None = None) -> str:
    """Return the address of an engine's socket, in Linux's abstract namespace, so that no file is left behind.

    The address differs between tritonservers (also in other containers of a pod) and between publications. `server` is
    the process id of tritonserver, for processes that are not its children.
    """
    name = f"{NAMESPACE.stat().st_ino} {os.getppid() if server is None else server} {engine} {published}"
    return "\0hfx-" + hashlib.sha256(name.encode()).hexdigest()


def connect(engine: str, published: str = "", server: int | None = None) -> FramedSocket:
    """Connect to the engine. Raises OSError if no engine listens, or if the listener is another user's process."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(CONNECT_SECONDS)
    try:
        connection.connect(address(engine, published, server))
        connection.settimeout(None)
        check_peer(connection)
    except BaseException:
        connection.close()
        raise
    return FramedSocket(connection)


def check_peer(connection: socket.socket) -> None:
    """Raise PermissionError unless the other end is a process of this user."""
    _, user, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    if user != os.getuid():
        raise PermissionError(f"a process of user {user} is at the other end")


class FramedSocket:
    """One end of a connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.closed = False
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises OSError if the connection is broken."""
        # A lone surrogate stands for a byte that is not UTF-8 (see `text_of`).
        raw = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        with self._sending:
            self._connection.sendall(HEADER.pack(len(raw)) + raw)

    def receive(self) -> Any:
        """Wait for the next message and return it; return None if the connection is closed."""
        header = self._read(HEADER.size)
        raw = self._read(HEADER.unpack(header)[0]) if header else None
        if raw is None:
            self.closed = True
            return None
        return json.loads(raw.decode("utf-8", "surrogatepass"))

    def close(self) -> None:
        """Close the connection. `receive` then returns None at both ends."""
        self.closed = True
        with contextlib.suppress(OSError):  # the other end has already closed the connection
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, size: int) -> bytes | None:
        buffer = bytearray(size)
        view, read = memoryview(buffer), 0
        while read < size:
            try:
                count = self._connection.recv_into(view[read:])
            except OSError:
                count = 0
            if not count:
                return None
            read += count
        return bytes(buffer)


def text_of(raw: bytes) -> str:
    """Return any bytes as a text that a message can contain."""
    return raw.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Return the bytes of a text that `text_of` returned."""
    return text.encode("utf-8", "surrogateescape")
