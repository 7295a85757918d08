"""The engine's end of the connections to its relays, with a thread for each connection."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

from ..errors import Unexpected, failure_of, reason_of, with_reason
from .ipc import FramedSocket, address, bytes_of, check_peer
from .request import Channel, Tensors

RETRY_SECONDS = 0.1

# Receives a request: its tensors, parameters, channel to the caller, id (which can't be guessed), and trace context.
Take = Callable[[Tensors, str, Channel, str, str], None]
MostOpen = Callable[[], Optional[int]]  # how many requests of relays may be in flight; None: any number


class RelayChannel:
    """The channel to a caller of a relay, for one response.

    The relay itself polls whether the caller has cancelled the request.
    """

    def __init__(self, connection: FramedSocket, number: int, most_open: MostOpen) -> None:
        self._connection = connection
        self._number = number
        self._most_open = most_open

    def send(self, outputs: Mapping[str, Any], final: bool) -> None:
        """Send the response to the relay."""
        self._answer({"outputs": outputs})

    def fail(self, message: str, code: str) -> None:
        """Send an error to the relay, as the last message."""
        self._answer({"error": message, "code": code})

    def is_cancelled(self) -> bool:
        """Whether the connection to the relay is closed."""
        return self._connection.closed

    def _answer(self, answer: dict[str, Any]) -> None:
        try:
            self._connection.send({"id": self._number, "most_open": self._most_open(), **answer})
        except OSError:
            self._connection.closed = True  # the relay has died; Triton has told its callers


class RelayServer:
    """Passes requests of relays to `take`, and ids of cancelled requests to `cancel`, from its own threads.

    Each response has the number `most_open`. A relay refuses requests beyond this number itself, and reports how many
    it has refused, which is passed to `count_refused`.
    """

    def __init__(
        self,
        engine: str,
        take: Take,
        cancel: Callable[[str], None],
        most_open: MostOpen,
        count_refused: Callable[[int], None],
        published: str = "",
    ) -> None:
        self._take = take
        self._cancel = cancel
        self._most_open = most_open
        self._count_refused = count_refused
        self._closing = threading.Event()
        self._connections: list[FramedSocket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._address = address(engine, published)
        is_bound = self._bound()
        self._thread = threading.Thread(target=self._listen, args=(is_bound,), name="relays")
        self._thread.start()

    def wait_for_relays(self, seconds: float) -> None:
        """Wait until no relay is connected, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while any(not connection.closed for connection in self._connections) and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS / 2)

    def close(self) -> None:
        """Disconnect the relays. Their unanswered requests fail."""
        self._closing.set()
        with contextlib.suppress(OSError):  # the socket does not listen yet
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _listen(self, is_bound: bool) -> None:
        while not is_bound:  # the model is being replaced, and its former engine still listens
            if self._closing.wait(RETRY_SECONDS):
                return
            is_bound = self._bound()
        while not self._closing.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                continue
            try:
                check_peer(accepted)
            except PermissionError:
                accepted.close()
                continue
            connection = FramedSocket(accepted)
            self._connections = [open_ for open_ in self._connections if not open_.closed] + [connection]
            threading.Thread(target=self._serve, args=(connection,), name="relay", daemon=True).start()

    def _bound(self) -> bool:
        try:
            self._listener.bind(self._address)
        except OSError:
            return False
        self._listener.listen()
        return True

    def _serve(self, connection: FramedSocket) -> None:
        relay = secrets.token_hex(16)
        try:
            while (message := connection.receive()) is not None:
                if "cancel" in message:
                    self._cancel(f"{relay}-{message['cancel']}")
                elif "refused" in message:
                    self._count_refused(message["refused"])
                else:
                    self._request(message, RelayChannel(connection, message["id"], self._most_open), relay)
        finally:
            connection.close()  # also after a bug, so that the relay fails its calls instead of waiting for ever

    def _request(self, message: dict[str, Any], channel: RelayChannel, relay: str) -> None:
        try:
            tensors = ((name, list(map(_raw, items))) for name, items in message["inputs"].items())
            request_id, trace = f"{relay}-{message['id']}", message.get("trace", "")
            self._take(tensors, message.get("parameters", ""), channel, request_id, trace)
        except BaseException as error:  # a bug must not end other requests
            failure = failure_of(error)
            if isinstance(failure, Unexpected):  # stderr is Triton's log
                print(f"a request ended with an unexpected error: {error!r}", file=sys.stderr, flush=True)
            reason = reason_of(failure)
            channel.fail(with_reason(reason, failure), reason.code)


def _raw(item: Any) -> Any:
    return bytes_of(item) if isinstance(item, str) else item
