"""Ways of the tests for processes of their own: spawned processes find them by their names."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable


def doubling(start: int) -> Callable[[int], Callable[[], int]]:
    """Answers n with start + 2n; says much."""
    print("loud words on stdout")
    print("loud words on stderr", file=sys.stderr)
    return lambda case: lambda: start + 2 * case


def refusing() -> Callable[[int], Callable[[], int]]:
    raise ImportError("first line\nno module named peer")


def dying_at_once() -> Callable[[int], Callable[[], int]]:
    print("out of luck", file=sys.stderr, flush=True)
    os._exit(7)


def moody() -> Callable[[str], Callable[[], str]]:
    """Does what the case says."""

    def prepare(case: str) -> Callable[[], str]:
        def run() -> str:
            if case == "raise":
                raise ValueError("not this one")
            if case == "die":
                print("the last words", file=sys.stderr, flush=True)
                os._exit(9)
            if case == "sleep":
                time.sleep(0.05)
            return case

        return run

    return prepare


def added(a: int, b: int) -> int:
    return a + b


def failing() -> int:
    raise RuntimeError("apart")
