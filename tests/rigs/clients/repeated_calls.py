"""Callers that repeat requests to a server while a test changes it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hfx.client import Client
from hfx.errors import HfxError


@contextmanager
def calling(grpc_url: str, calls: Sequence[Callable[[Client], str]]) -> Iterator[Counter[str]]:
    """Repeat each of `calls` in a thread; yield how often each answer or failure has occurred."""
    outcomes: Counter[str] = Counter()
    ended = threading.Event()

    def repeat(call: Callable[[Client], str]) -> None:
        with Client(grpc_url, retries=0) as client:
            while not ended.is_set():
                try:
                    outcome = call(client)
                except HfxError as error:
                    outcome = repr(error)
                outcomes[outcome] += 1

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        ended.set()
        for thread in threads:
            thread.join()
