"""Scoring chunks of the input into parts of the output; the workers of every runner use it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from hfx.answering import Answer, Model, Request
from hfx.batch.folder import new_part
from hfx.batch.job import Job
from hfx.batch.parts import PartFormat, format_of
from hfx.batch.plan import PlannedJob, rows_of
from hfx.batch.rows import Layout, NumberedRow, Requests, layout_of
from hfx.batch.scoring import reason, score
from hfx.errors import HfxError, RequestRefused
from hfx.rows import Source

KINDS_SHOWN = 20  # kinds of errors that a summary lists
OTHERS = "Other errors."
BLOCK = 1024  # rows that are formatted together
KILLER = "The process that computes it ends every time."


@dataclass(frozen=True)
class ChunkDone:
    """A chunk whose part is on the disk: its rows, its errors by kind, and the seconds since the previous chunk."""

    number: int
    rows: int
    errors: Mapping[str, int]
    seconds: float


class _Unsure(Exception):
    """A server was lost before confirming that it still has the job's model, so a chunk must be scored again."""


def part_format(job: Job, layout: Layout) -> PartFormat:
    """Return the format of a job's parts and output."""
    types = kept_types(job.inputs, job.output.keep) if job.output.ending == ".parquet" else {}
    return format_of(job.output.ending, layout.columns, types)


def kept_types(sources: Sequence[Source], kept: Sequence[str]) -> dict[str, Any]:
    """Return the Arrow types of kept columns on which all inputs agree. Empty unless all inputs are Parquet files."""
    if not all(source.format == "parquet" for source in sources):
        return {}
    import pyarrow.parquet

    schemas = []
    for source in sources:
        with source.open() as file:
            schemas.append(pyarrow.parquet.read_schema(file))
    first, *others = schemas
    types = {name: first.field(name).type for name in kept}
    return {name: kind for name, kind in types.items() if all(schema.field(name).type == kind for schema in others)}


def score_chunks(
    planned: PlannedJob,
    numbers: Iterable[int],
    model: Model,
    *,
    at_once: int | None = None,
    on_begin: Callable[[str, int], object] = lambda kind, number: None,
    killers: Iterable[int] = (),
    alone: bool = False,
) -> Generator[ChunkDone, None, None]:
    """Score the chunks `numbers`, write their parts, and yield each chunk when its part is on the disk.

    At most `at_once` rows are in flight, or one row with `alone`. Rows whose numbers are in `killers` become error
    rows, and are not scored. If a server is lost before it is known which model answered a chunk, the chunk is scored
    again. `on_begin` is called, from any thread, with "chunk" and the number of each chunk that begins, and with
    `alone` also with "row" and the number of each row.

    Raises InputChanged, ModelChanged, StorageFull, and the errors of `score`; finished parts are kept. Closing the
    generator cancels the requests in flight.
    """
    job, left = planned.job, [planned.chunks[number] for number in numbers]
    layout, request_of = layout_of(job), Requests.of(job)
    written = part_format(job, layout)
    killer_rows, began = frozenset(killers), time.monotonic()

    def checked_request(item: NumberedRow) -> Request:
        if item.number in killer_rows:
            raise RequestRefused(KILLER)
        return request_of(item)

    def begun(items: Iterable[NumberedRow]) -> Iterator[NumberedRow]:
        chunk = None
        for item in items:
            if item.chunk != chunk:
                on_begin("chunk", chunk := item.chunk)
            if alone:
                on_begin("row", item.number)
            yield item

    while left:
        items = begun(rows_of(job.inputs, [*left], [*job.columns.values(), *layout.kept]))
        with suppress(_Unsure), closing(score(model, items, checked_request, 1 if alone else at_once)) as outcomes:
            for number, group in groupby(outcomes, key=lambda outcome: outcome[0].chunk):
                errors: Counter[str] = Counter()
                with new_part(planned.folder.part(number, job.output.ending)) as file:
                    written.write(file, _blocks(layout, group, errors))
                    if not model.is_unchanged():
                        raise _Unsure
                chunk, now = left.pop(0), time.monotonic()
                yield ChunkDone(number, chunk.extent.rows, commonest(errors), now - began)
                began = now
            return


def _blocks(
    layout: Layout, outcomes: Iterator[tuple[NumberedRow, Answer | HfxError]], errors: Counter[str]
) -> Iterator[list[list[Any]]]:
    """Yield the cells of up to BLOCK rows at a time, column by column."""
    while block := list(islice(outcomes, BLOCK)):
        errors.update(kind_of(reason(outcome)) for _, outcome in block if isinstance(outcome, HfxError))
        yield layout.cells(block)


def commonest(errors: Counter[str]) -> dict[str, int]:
    """Return the KINDS_SHOWN most frequent kinds of errors. All other kinds are counted together."""
    shown = dict(errors.most_common(KINDS_SHOWN))
    others = errors.total() - sum(shown.values())
    return {**shown, OTHERS: others} if others else shown


def kind_of(text: str) -> str:
    """Return the kind of an error: its text with every number replaced by N."""
    return re.sub(r"\d+", "N", text)[:200]
