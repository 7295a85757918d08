"""The TCP connections of a local port, and when each last sent and received: sock_diag(7), as `ss` asks it.

Needs no rights and sees this network namespace only. Owns the wire format; what a quiet connection means is others'.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

SOCK_DIAG = 4  # the netlink family
DIAG_BY_FAMILY, DONE, ERROR = 20, 3, 2  # message types
REQUEST_DUMP = 0x301
INFO = 2  # the attribute with struct tcp_info
ESTABLISHED, CLOSE_WAIT = 1, 8
HEADER = struct.Struct("=IHHII")
QUESTION = struct.Struct("=BBBxI48s")
SOCKET_BYTES = 72  # struct inet_diag_msg; attributes follow
PORT_OFFSET = 4
INFO_NUMBERS = struct.Struct("=8x13I")
LAST_SENT, LAST_RECEIVED = 9, 11  # of INFO_NUMBERS, in milliseconds ago
SEGMENTS = struct.Struct("=152xII")  # with data: in, out


@dataclass(frozen=True)
class Connection:
    """Seconds since the local side last sent and received, and whether it has at all."""

    sent: float
    received: float
    has_sent: bool
    has_received: bool

    @property
    def owes(self) -> bool:
        """Whether something came in after the last that went out: with HTTP/1.1, a request without an answer.

        The kernel's clock ticks every few milliseconds: what came in the same tick counts as answered.
        """
        return self.has_received and (not self.has_sent or self.received < self.sent)


def connections(port: int) -> list[Connection]:
    """Every open connection that others made to the local TCP PORT; OSError where the kernel does not tell."""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in _dump(family):
            if struct.unpack_from(">H", entry, PORT_OFFSET)[0] == port:
                found += [_connection(value) for kind, value in _attributes(entry) if kind == INFO]
    return found


def _connection(info: bytes) -> Connection:
    numbers = INFO_NUMBERS.unpack_from(info)
    received, sent = SEGMENTS.unpack_from(info)
    return Connection(numbers[LAST_SENT] / 1000, numbers[LAST_RECEIVED] / 1000, sent > 0, received > 0)


def _dump(family: int) -> Iterator[bytes]:
    states = 1 << ESTABLISHED | 1 << CLOSE_WAIT
    question = QUESTION.pack(family, socket.IPPROTO_TCP, 1 << (INFO - 1), states, b"")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        kernel.send(HEADER.pack(HEADER.size + len(question), DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + question)
        while True:
            for kind, message in _messages(kernel.recv(1 << 16)):
                if kind == DONE:
                    return
                if kind == ERROR:
                    raise OSError("sock_diag is refused")
                yield message


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        length, kind, *_ = HEADER.unpack_from(data)
        yield kind, data[HEADER.size : length]
        data = data[_aligned(length) :]


def _attributes(entry: bytes) -> Iterator[tuple[int, bytes]]:
    data = entry[SOCKET_BYTES:]
    while data:
        length, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:length]
        data = data[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
