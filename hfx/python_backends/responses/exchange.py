"""The engine's end of the lines to its relays: their requests in, answers out.

Owns the socket that listens, and a thread for each relay. What a request asks for is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from ..engine.errors import InvalidRequest
from ..generation.results import Piece
from .codes import code_of, message_of
from .line import Line, address, bytes_of, check_peer
from .outbox import Channel
from .pieces import values_of

RETRY_SECONDS = 0.1

Values = Iterable["tuple[str, list[Any]]"]
# What a request's tensors hold, the way back to its caller, and an id that nobody can guess.
Take = Callable[[Values, Channel, str], None]


class LineChannel:
    """See outbox.Channel: the way back to a caller of a relay, which itself looks whether its caller has left."""

    def __init__(self, line: Line, number: int) -> None:
        self._line = line
        self._number = number

    def send(self, piece: Piece) -> None:
        """See Channel."""
        self._tell({"outputs": values_of(piece)})

    def refuse(self, error: Exception) -> None:
        """See Channel."""
        self._tell({"error": message_of(error), "code": code_of(error)})

    def left(self) -> bool:
        """See Channel."""
        return self._line.closed

    def _tell(self, answer: dict[str, Any]) -> None:
        try:
            self._line.send({"id": self._number, **answer})
        except OSError:
            self._line.closed = True  # the relay has died, and its callers know


class Exchange:
    """Hands requests of relays to `take`, and what they cancel to `cancel`, both from threads of its own."""

    def __init__(self, engine: str, take: Take, cancel: Callable[[str], None]) -> None:
        self._take = take
        self._cancel = cancel
        self._closing = threading.Event()
        self._lines: list[Line] = []
        self._listener = socket.socket(socket.AF_UNIX)
        is_bound = self._bound(engine)
        self._thread = threading.Thread(target=self._listen, args=(engine, is_bound), name="relays")
        self._thread.start()

    def close(self) -> None:
        """Let go of the relays; what they still wait for is lost."""
        self._closing.set()
        with contextlib.suppress(OSError):  # it does not listen yet
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for line in self._lines:
            line.close()

    def _listen(self, engine: str, is_bound: bool) -> None:
        while not is_bound:  # the model is loaded again, and the engine before is still there
            if self._closing.wait(RETRY_SECONDS):
                return
            is_bound = self._bound(engine)
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                continue
            try:
                check_peer(connection)
            except PermissionError:
                connection.close()
                continue
            line = Line(connection)
            self._lines = [each for each in self._lines if not each.closed] + [line]
            threading.Thread(target=self._serve, args=(line,), name="relay", daemon=True).start()

    def _bound(self, engine: str) -> bool:
        try:
            self._listener.bind(address(engine))
        except OSError:
            return False
        self._listener.listen()
        return True

    def _serve(self, line: Line) -> None:
        relay = secrets.token_hex(16)
        try:
            while (message := line.receive()) is not None:
                if "cancel" in message:
                    self._cancel(f"{relay}-{message['cancel']}")
                else:
                    self._ask(message, line, relay)
        finally:
            line.close()  # also after a bug: the relay fails its calls then, and nobody waits for ever

    def _ask(self, message: dict[str, Any], line: Line, relay: str) -> None:
        channel = LineChannel(line, message["id"])
        if True in message["ask"].get("stream", ()):  # a second answer would have no caller any more
            channel.refuse(
                InvalidRequest("stream", True, "false: a plain call has one answer, NAME_stream gives pieces")
            )
            return
        values = ((name, list(map(_raw, items))) for name, items in message["ask"].items())
        try:
            self._take(values, channel, f"{relay}-{message['id']}")
        except Exception as error:  # a bug, which is this request's alone
            channel.refuse(error)


def _raw(item: Any) -> Any:
    return bytes_of(item) if isinstance(item, str) else item
