"""How far a long step is: loops count what they have done, and pipeline.export shows it."""

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
    """Let loops in the block show by `show` how far they are; None: nowhere."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """The `items`, which are called `what`, one after the other; each is counted when it begins."""
    for number, item in enumerate(items, 1):
        if (show := _show.get()) is not None:
            show(f"{number} of {len(items)} {what}")
        yield item
