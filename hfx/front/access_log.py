"""The access log: a line on stderr for each request that was answered, written by a thread of its own.

A reader of stderr that stops reading must not stop the requests: lines that wait in vain are dropped and counted.
"""

from __future__ import annotations

import queue
import sys
import threading
from datetime import UTC, datetime

WAITING_LINES = 10_000


class AccessLog:
    """Writes lines such as `2026-01-31T12:00:00.123Z 127.0.0.1 POST /v2/models/m/infer 200 31B 1.8ms 5f2a-1`."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue(WAITING_LINES)
        self._dropped = 0
        threading.Thread(target=self._write, name="access-log", daemon=True).start()

    def add(
        self, client: str, method: str, path: bytes, status: int, size: int, seconds: float, request_id: bytes
    ) -> None:
        """Log a request; `status` is 0 for one whose client left before it was answered, `size` the answer's bytes."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        target = path.decode("ascii", "backslashreplace")
        line = f"{now} {client} {method} {target} {status} {size}B {seconds * 1000:.1f}ms {request_id.decode()}\n"
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if dropped := self._dropped:
                self._dropped = 0
                line += f"{dropped} lines of the access log were dropped: nothing read them in time.\n"
            sys.stderr.write(line)
            sys.stderr.flush()
