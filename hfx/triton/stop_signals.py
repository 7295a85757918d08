"""What signals mean to a program that serves: the first one asks it to stop, another one to do it at once.

Owns the handlers of SIGINT, SIGTERM and SIGHUP; how a server stops is its own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """A context in which the first stop signal raises KeyboardInterrupt, once, and each further one calls `at_once`.

    So nothing disturbs the stopping: `at_once` may only shorten it. After more than one signal the context ends with
    KeyboardInterrupt, whatever came of the stopping. A signal that is ignored (nohup) stays so.
    """

    def __init__(self) -> None:
        self.received = 0
        self.at_once: Callable[[], None] = lambda: None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.received > 1:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: object) -> None:
        self.received += 1
        if self.received == 1:
            raise KeyboardInterrupt
        self.at_once()
