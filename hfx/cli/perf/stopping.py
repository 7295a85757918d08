"""Ctrl-C while something is measured: what was measured until then is kept. A second one ends the command at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ending_early() -> Iterator[threading.Event]:
    """Yields the event that the first Ctrl-C sets."""
    stop = threading.Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
