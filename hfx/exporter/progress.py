"""Show the progress of long steps: loops count their items, and pipeline.export shows the count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Show = Callable[[str], None]
_show: ContextVar[Show | None] = ContextVar("show", default=None)


@contextmanager
def shown(show: Show | None) -> Iterator[None]:
    """Have loops in the block show their progress by `show`; None: they show nothing."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield `items`, and show before each one how many have begun, for example "3 of 8 `what`"."""
    for number, item in enumerate(items, 1):
        if (show := _show.get()) is not None:
            show(f"{number} of {len(items)} {what}")
        yield item
