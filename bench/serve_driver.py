"""Loads put to a door: who sends what when, and the records of it.

Owns the clock of the sender. Requests are ready before the clock starts and answers are read after it has stopped, so
that on few cores no more than the sending itself is beside what is measured. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from bench.serve_answers import Answer, Measured, Piece, Record, figures
from bench.serve_cases import Ask, Closed, Load, Open

LONGEST_LOAD = 120.0  # seconds


class Door(Protocol):
    """A way to the engine."""

    async def connect(self, callers: int) -> None:
        """Be ready for so many requests at the same time."""

    def prepared(self, ask: Ask) -> Any:
        """What `send` takes."""

    async def send(self, request: Any, record: Record) -> None:
        """Send it now; append messages to the record as they come, and return after the last. Raises on failure."""

    def read(self, message: object) -> Piece:
        """What a message says. Raises ValueError for an error."""


async def drive(door: Door, load: Load) -> Measured:
    """Put the load to the door."""
    await door.connect(load.callers)
    requests = {ask: door.prepared(ask) for ask in set(load.asks)}
    records = [Record() for _ in load.asks]
    with _undisturbed():
        used = time.process_time()
        async with asyncio.timeout(LONGEST_LOAD):
            await (_closed if isinstance(load, Closed) else _open)(door, load, requests, records)
        used = time.process_time() - used
    return figures([_answer(door, record) for record in records], min(load.callers, len(records)), used)


async def _closed(door: Door, load: Closed, requests: dict[Ask, Any], records: list[Record]) -> None:
    coming = iter(zip(load.asks, records, strict=True))

    async def caller() -> None:
        for ask, record in coming:
            record.due = time.perf_counter()
            await _send(door, requests[ask], record)

    await asyncio.gather(*(caller() for _ in range(load.callers)))


async def _open(door: Door, load: Open, requests: dict[Ask, Any], records: list[Record]) -> None:
    begin, tasks = time.perf_counter(), []
    for ask, at, record in zip(load.asks, load.at, records, strict=True):
        record.due = begin + at
        if (wait := record.due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(_send(door, requests[ask], record)))
    await asyncio.gather(*tasks)


async def _send(door: Door, request: Any, record: Record) -> None:
    record.sent = time.perf_counter()
    try:
        await door.send(request, record)
    except Exception as error:  # of any kind: it is one of the figures
        record.error = f"{type(error).__name__}: {error}"


def _answer(door: Door, record: Record) -> Answer:
    try:
        pieces = tuple((at, door.read(message)) for at, message in record.messages)
        error = record.error or ("" if pieces and pieces[-1][1].finish_reason else "the answer has no end")
    except ValueError as refusal:
        pieces, error = (), str(refusal)
    return Answer(record.due, record.sent, pieces, error)


@contextmanager
def _undisturbed() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
