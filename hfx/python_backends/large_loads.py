"""The load of a net's large requests, which the net passes to the tokenizing step before it.

Each instance of the net listens at an address of its own. A connection is sent the load, and closed.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from .large_requests import Load
from .serving.ipc import address, check_peer

MOST_INSTANCES = 64
LOAD = struct.Struct("<qqd")
SECONDS = 0.1  # a net that does not send its load for so long has no load: a request is then taken


class LoadServer:
    """A thread that sends `load()` to the processes that connect to the net `name` of the publication `published`."""

    def __init__(self, name: str, published: str, load: Callable[[], Load]) -> None:
        self._load = load
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for number in range(MOST_INSTANCES):
            with suppress(OSError):  # another instance has the address
                self._listener.bind(address(f"{name} {number}", published))
                break
        threading.Thread(target=self._serve, name="load", daemon=True).start()

    def close(self) -> None:
        """Stop the thread that sends the load to those that connect."""
        with suppress(OSError):  # it has no address
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):  # the listener is closed, or has no address
            self._listener.listen()
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):  # the other end has closed the connection
                    load = self._load()
                    connection.send(LOAD.pack(load.elements, load.requests, load.rate))


def least_load(name: str, published: str) -> Load:
    """Return the load of that instance of the net `name` which has the least; no load if no instance sends one."""
    loads = []
    with suppress(OSError, struct.error):
        for number in range(MOST_INSTANCES):
            loads.append(_load(address(f"{name} {number}", published)))
    return min(loads, key=lambda load: (load.requests, load.elements), default=Load())


def _load(place: str) -> Load:
    """Return the load that is sent at `place`. Raises OSError, struct.error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(SECONDS)
        connection.connect(place)
        check_peer(connection)
        return Load(*LOAD.unpack(connection.recv(LOAD.size)))
