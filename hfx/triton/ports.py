"""Choosing the ports of a server before it starts.

Triton has no "port 0" and runs on without metrics when that port is taken, so all three are tried here first.
Between this look and Triton's own bind another process can still take a free port: the caller tries again.
"""

from __future__ import annotations

import socket

from hfx.errors import ServerError, UsageError
from hfx.triton.server import Ports

OPTIONS = {"http": "--http-port", "grpc": "--grpc-port", "metrics": "--metrics-port"}


def choose_ports(wanted: Ports, host: str) -> Ports:
    """WANTED with a free port for each 0; raises ServerError when a given port is taken, naming it and its option."""
    given = {use: port for use in OPTIONS if (port := getattr(wanted, use))}
    _check_given(given)
    held: list[socket.socket] = []  # all are held until all are known, so that no port is given out twice
    try:
        for use, port in given.items():
            held.append(_bind(host, port, use))
        free = {use: _bind_free(host, held) for use in OPTIONS if use not in given}
    finally:
        for sock in held:
            sock.close()
    return Ports(**given, **free)


def _check_given(given: dict[str, int]) -> None:
    for use, port in given.items():
        if not 0 < port < 65536:
            raise UsageError(f"{OPTIONS[use]} {port} is no port.", "Ports go from 1 to 65535; 0 takes a free one.")
        twin = next((other for other in given if other != use and given[other] == port), None)
        if twin:
            raise UsageError(f"{OPTIONS[use]} and {OPTIONS[twin]} are both {port}.", "Give each its own port.")


def _bind(host: str, port: int, use: str) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Triton does: a port in TIME_WAIT is free
    try:
        sock.bind((host, port))
        sock.listen(1)
    except OSError as error:
        sock.close()
        raise port_taken(use, host, port, error.strerror or str(error)) from error
    return sock


def _bind_free(host: str, held: list[socket.socket]) -> int:
    sock = socket.socket()
    sock.bind((host, 0))
    held.append(sock)
    return int(sock.getsockname()[1])


def port_taken(use: str, host: str, port: int, reason: str) -> ServerError:
    """The error for a port that can't be listened at."""
    return ServerError(
        f"Can't listen for {use} at {host}:{port}: {reason}.",
        f"Stop the program that uses it, or choose another with {OPTIONS[use]} ({OPTIONS[use]} 0 takes a free one).",
    )
