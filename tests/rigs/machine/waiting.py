"""Waiting for the effect of another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value], what: str = "it", seconds: float = 120.0) -> Value:
    """Return the value of `condition` as soon as it is true. Raises AssertionError with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds:g} s"
        time.sleep(0.02)
    return value
