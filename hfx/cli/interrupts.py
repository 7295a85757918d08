"""Ctrl-C at a time when nothing must be left half done.

An import is such a time: numpy, for one, takes the interruption for a broken installation, and prints so.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred() -> Iterator[None]:
    """Ctrl-C waits for the end of the block; threads that are started in it never get it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
