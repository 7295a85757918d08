"""The threads between the engine and the callers: one makes texts of tokens, one sends them and asks who has left.

Owns the threads and what wakes them: the engine's thread only hands over, once a step. What is made and sent is the
task's and the outbox's.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..engine.handle import Listener
from ..generation.waits import Caller
from .outbox import Outbox
from .task import Made, Task
from .turns import Turns

# Threads that tokenize and submit. Long texts have one of their own: short ones must not wait for them.
OPENERS = 4
LONG_TEXT = 2**16  # bytes or characters


class Desk:
    """Takes tasks and sees each of them to its end. `log` gets a line for what nobody else can be told."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.outbox = Outbox()
        self._log = log
        self._openers = ThreadPoolExecutor(OPENERS, "open")
        self._long_openers = ThreadPoolExecutor(1, "open-long")
        self._news: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._tell = self._news.put
        self._turns: Turns[Task] = Turns()
        self._threads = [
            threading.Thread(target=self._make_texts, name="texts"),
            threading.Thread(target=self._send, name="responses"),
        ]
        for thread in self._threads:
            thread.start()

    def take(self, task: Task, size: int) -> None:
        """See a task with a text of `size` to its end."""
        self._turns.add(task)
        if len(self._turns) == 1:
            self.outbox.wake()  # its thread may wait for pieces only
        (self._openers if size <= LONG_TEXT else self._long_openers).submit(self._open, task)

    def close(self) -> None:
        """End the threads when what they have is done; every task must be over."""
        for pool in (self._openers, self._long_openers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._news.put(None)
        self._threads[0].join()
        self.outbox.close()
        self._threads[1].join()
        self._turns.clear()  # what they hold of Triton must be gone before Triton is

    def _open(self, task: Task) -> None:
        refused = task.open(Caller(Listener(self._tell, task), self._long_openers))
        if refused is None:
            self._tell([task])
        else:
            self.outbox.put([refused])

    def _make_texts(self) -> None:
        while (tasks := self._news.get()) is not None:
            self.outbox.put([task.advance() for task in dict.fromkeys(tasks) if not task.done])

    def _send(self) -> None:
        while (replies := self.outbox.take(self._turns.wait())) is not None:
            for reply in replies:
                try:
                    self.outbox.send(reply)
                except Exception as error:
                    self._log(f"a response could not be sent: {error!r}")
            self.outbox.rest(len(replies))
            late = [made for task in self._turns.due(time.monotonic()) if (made := self._watched(task))]
            if late:
                self.outbox.put(late)

    def _watched(self, task: Task) -> Made | None:
        try:
            return task.watch()
        except Exception as error:
            self._log(f"a caller could not be looked after: {error!r}")
            return None
