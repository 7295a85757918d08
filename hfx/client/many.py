"""Many requests at a time: a bounded number under way, answers in order, each in its place.

Nothing of an iterable is read before there is room for it. Whoever stops reading, or meets an error, leaves nothing
under way. This file must not know what the requests are.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TypeVar

from hfx.client.waiting import Crew, Running, Work
from hfx.errors import HfxError

Result = TypeVar("Result")


async def in_order(works: Iterable[Work[Result]], crew: Crew, most: int) -> AsyncGenerator[Result | HfxError, None]:
    """The result or error of each work, in order; at most MOST are started beyond what has been read."""
    waiting: deque[Running[Result | HfxError]] = deque()
    try:
        for work in works:
            waiting.append(crew.start(_settled(work)))
            if len(waiting) == most:
                yield await _next(waiting, crew)
        while waiting:
            yield await _next(waiting, crew)
    finally:
        await crew.dismiss()


async def results(works: Iterable[Work[Result]], crew: Crew, most: int) -> list[Result]:
    """All results in order; the first error ends everything, and is raised with its index."""
    found: dict[int, Result] = {}
    async with aclosing(_as_they_come(works, crew, most)) as coming:
        async for index, outcome in coming:
            if isinstance(outcome, HfxError):
                raise _at(index, outcome)
            found[index] = outcome
    return [found[index] for index in sorted(found)]


async def outcomes(works: Iterable[Work[Result]], crew: Crew, most: int) -> list[Result | HfxError]:
    """All results in order, and errors in the places of those that failed."""
    async with aclosing(_as_they_come(works, crew, most)) as coming:
        found = {index: outcome async for index, outcome in coming}
    return [found[index] for index in sorted(found)]


async def _as_they_come(
    works: Iterable[Work[Result]], crew: Crew, most: int
) -> AsyncGenerator[tuple[int, Result | HfxError], None]:
    under_way: dict[Running[Result | HfxError], int] = {}
    try:
        for index, work in enumerate(works):
            under_way[crew.start(_settled(work))] = index
            if len(under_way) == most:
                await crew.first(under_way)
                for done in [running for running in under_way if running.done()]:
                    yield under_way.pop(done), done.result()
        while under_way:
            await crew.first(under_way)
            for done in [running for running in under_way if running.done()]:
                yield under_way.pop(done), done.result()
    finally:
        await crew.dismiss()


async def _next(waiting: deque[Running[Result]], crew: Crew) -> Result:
    await crew.first([waiting[0]])
    return waiting.popleft().result()


def _settled(work: Work[Result]) -> Work[Result | HfxError]:
    async def settle() -> Result | HfxError:
        try:
            return await work()
        except HfxError as error:
            return error

    return settle


def _at(index: int, error: HfxError) -> HfxError:
    located = copy.copy(error)
    located.message = f"At index {index}: {error.message}"
    located.__cause__ = error
    return located
