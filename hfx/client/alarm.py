"""Timeouts for waits that know none: after so many seconds, something is called.

One thread for all who wait; it starts with the first and ends when nobody has waited for a while. This file must not
know what is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINGER_SECONDS = 5.0  # how long the thread stays without anything to watch


class Alarm:
    """Calls back whoever has waited too long; safe to share between threads."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[float, Callable[[], object]]] = {}
        self._changed = threading.Condition()
        self._wakes = 0.0  # when the thread will look again
        self._thread: threading.Thread | None = None

    @contextmanager
    def after(self, seconds: float, ring: Callable[[], object]) -> Iterator[None]:
        """Call RING, once, if the block takes longer than SECONDS."""
        due = time.monotonic() + seconds
        with self._changed:
            self._waits[id(ring)] = due, ring
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="hfx-client-alarm", daemon=True)
                self._thread.start()
            elif due < self._wakes:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._waits.pop(id(ring), None)

    def _watch(self) -> None:
        while True:
            for ring in self._due():
                ring()
            with self._changed:
                now = time.monotonic()
                self._wakes = min((due for due, _ in self._waits.values()), default=now + LINGER_SECONDS)
                if not self._changed.wait(max(self._wakes - now, 0)) and not self._waits:
                    self._thread = None
                    return

    def _due(self) -> list[Callable[[], object]]:
        with self._changed:
            now = time.monotonic()
            late = [key for key, (due, _) in self._waits.items() if due <= now]
            return [self._waits.pop(key)[1] for key in late]
