"""Handling of Ctrl-C: it is delayed while something must be completed, or it ends a measurement."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, such as an import; threads that are started in the block never get it.

    numpy, for example, reports an interrupted import as a broken installation.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ending_early() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets, to end a measurement with its results; a second one ends at once."""
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
