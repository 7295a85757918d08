"""plan.jsonl: the chunks of a job's inputs, found in one pass over them before anything is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hfx.batch.folder import PLAN, Folder, new_file, open_file, storage
from hfx.batch.rows import NumberedRow
from hfx.errors import InputChanged, JobError, RequestRefused, UsageError
from hfx.rows import Chunk, ChunkReader, Source, cut, source_of, verify


@dataclass(frozen=True)
class PlannedChunk:
    """Chunk `number` of a job: the rows `extent` of input `source`, numbered from `first_row` over the whole job."""

    number: int
    source: int
    first_row: int
    extent: Chunk

    @property
    def rows(self) -> range:
        """The numbers of its rows."""
        return range(self.first_row, self.first_row + self.extent.rows)


def count_rows(chunks: Iterable[PlannedChunk]) -> int:
    """The rows of chunks."""
    return sum(chunk.extent.rows for chunk in chunks)


def write_plan(folder: Folder, sources: Sequence[Source], columns: Sequence[str], rows: int) -> list[PlannedChunk]:
    """Cut `sources`, whose files must have `columns`, into chunks of `rows` rows; raises RowError for a bad file."""
    planned = list(_planned(sources, columns, rows))
    digest = hashlib.sha256()
    with new_file(folder.path / PLAN) as file:
        for chunk in planned:
            line = _line({"source": chunk.source, "first_row": chunk.first_row, **asdict(chunk.extent)})
            digest.update(line)
            file.write(line)
        file.write(_line({"sha256": digest.hexdigest()}))
    return planned


def _line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _planned(sources: Sequence[Source], columns: Sequence[str], rows: int) -> Iterator[PlannedChunk]:
    number, first_row = 0, 1
    for index, source in enumerate(sources):
        for chunk in cut(source, columns, rows):
            yield PlannedChunk(number, index, first_row, chunk)
            number, first_row = number + 1, first_row + chunk.rows


def read_plan(folder: Folder) -> list[PlannedChunk]:
    """The chunks of a plan. Raises JobError for one that is damaged: its last line is the hash of those before."""
    path = folder.path / PLAN
    planned: list[PlannedChunk] = []
    digest, line = hashlib.sha256(), b""
    with storage(path), open_file(path) as file:
        for line in file:
            if line == _line({"sha256": digest.hexdigest()}) and not file.read(1):
                return planned
            digest.update(line)
            try:
                planned.append(_chunk(len(planned), json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                break
    raise JobError(f"{path} is damaged.", "Start a new job.")


def _chunk(number: int, values: dict[str, Any]) -> PlannedChunk:
    source, first_row = values.pop("source"), values.pop("first_row")
    return PlannedChunk(number, source, first_row, Chunk(**values))


def check_rows(
    sources: Sequence[Source], planned: Iterable[PlannedChunk], check: Callable[[NumberedRow], object]
) -> None:
    """Read all rows, and raise the UsageError of the first that `check` does not take."""
    for item in rows_of(sources, planned):
        try:
            check(item)
        except (UsageError, RequestRefused) as error:
            raise UsageError(f"Row {item.number}: {error.message}", "Correct it, or leave --on-bad-row out.") from error


def rows_of(
    sources: Sequence[Source], planned: Iterable[PlannedChunk], kept: Sequence[str] | None = None
) -> Iterator[NumberedRow]:
    """The rows of chunks in their order; the last row of a chunk comes when the chunk is known to be as planned.

    Of Parquet, only the columns `kept` are read (None: all). Raises InputChanged.
    """
    with ChunkReader(kept) as reader:
        for chunk in planned:
            last = None
            for number, row in zip(chunk.rows, reader.rows(sources[chunk.source], chunk.extent), strict=True):
                if last is not None:
                    yield last
                last = NumberedRow(chunk.number, number, row)
            if last is not None:
                yield last


def check_inputs(sources: Sequence[Source], planned: Sequence[PlannedChunk]) -> None:
    """Raise InputChanged for an input that is not as planned; one with another time of change is read again."""
    for index, source in enumerate(sources):
        now = source_of(source.name, source.format)
        if now.size != source.size:
            raise InputChanged(
                f"{source.name} has {now.size} bytes, and had {source.size} when the job was planned.",
                "Restore the file, or start a new job.",
            )
        if now.modified != source.modified:
            verify(source, [chunk.extent for chunk in planned if chunk.source == index])
