"""A planned job, and plan.jsonl: the chunks of its inputs, found in one pass before any row is scored. Also shards.

A shard is a range of consecutive chunks for one of several processes. Shards share no state: two processes that score
the same chunk write the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from hfx.batch.folder import PLAN, Folder, new_file, open_file, storage
from hfx.batch.job import Job, read_job
from hfx.batch.rows import NumberedRow
from hfx.errors import InputChanged, JobError, RequestRefused, UsageError
from hfx.rows import Chunk, ChunkReader, Source, cut, source_of, verify


@dataclass(frozen=True)
class PlannedChunk:
    """Chunk `number` of a job: the range `extent` of the file `source` (an index into the job's inputs).

    `first_row` is the number of the chunk's first row over the whole job, from 1.
    """

    number: int
    source: int
    first_row: int
    extent: Chunk

    @property
    def rows(self) -> range:
        """The numbers of the chunk's rows."""
        return range(self.first_row, self.first_row + self.extent.rows)


def count_rows(chunks: Iterable[PlannedChunk]) -> int:
    """Return the number of rows in chunks."""
    return sum(chunk.extent.rows for chunk in chunks)


class Numbered(Protocol):
    """A chunk of a job, of rows, requests or files. Chunks are numbered from 0."""

    @property
    def number(self) -> int:
        """The number of the chunk, which is also the name of its part."""


NumberedChunk = TypeVar("NumberedChunk", bound=Numbered)


@dataclass(frozen=True)
class Plan(Generic[NumberedChunk]):
    """The chunks of a job, and the folder in which each chunk has a part once it is done.

    Jobs of `hfx batch` have one, and so do batches of OpenAI's API and Azure's jobs of scoring scripts.
    """

    folder: Folder
    chunks: Sequence[NumberedChunk]

    def share(self, shard: Shard | None = None) -> Sequence[NumberedChunk]:
        """Return the chunks of `shard`, or all of them."""
        mine = shard.chunks(len(self.chunks)) if shard else range(len(self.chunks))
        return self.chunks[mine.start : mine.stop]

    def missing(self, shard: Shard | None = None) -> list[NumberedChunk]:
        """Return the chunks of `shard`, or of the whole job, that have no part."""
        done = self.folder.done()
        return [chunk for chunk in self.share(shard) if chunk.number not in done]


@dataclass(frozen=True)
class PlannedJob(Plan[PlannedChunk]):
    """A job of `hfx batch` with its plan."""

    job: Job

    @property
    def rows(self) -> int:
        """The number of rows of all chunks."""
        return count_rows(self.chunks)

    @classmethod
    def read(cls, folder: Folder) -> Self:
        """Read the job in `folder`. Raises JobError if there is none, or if its plan is damaged."""
        job = read_job(folder)
        return cls(folder, read_plan(folder), job)


def cut_inputs(sources: Sequence[Source], columns: Sequence[str], rows: int) -> Iterator[PlannedChunk]:
    """Cut `sources` into chunks of `rows` rows. Raises RowError for a file without `columns`."""
    number, first_row = 0, 1
    for index, source in enumerate(sources):
        for chunk in cut(source, columns, rows):
            yield PlannedChunk(number, index, first_row, chunk)
            number, first_row = number + 1, first_row + chunk.rows


def write_plan(folder: Folder, planned: Iterable[PlannedChunk]) -> list[PlannedChunk]:
    """Write the plan, and return its chunks."""
    planned = list(planned)
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


def read_plan(folder: Folder) -> list[PlannedChunk]:
    """Read the chunks of a plan. The last line is the hash of the lines before it.

    Raises JobError for a damaged plan.
    """
    path = folder.path / PLAN
    planned: list[PlannedChunk] = []
    digest, line = hashlib.sha256(), b""
    with storage(path), open_file(path) as file:
        for line in file:
            if line == _line({"sha256": digest.hexdigest()}) and not file.read(1):
                return planned
            digest.update(line)
            try:
                values = json.loads(line)
                source, first_row = values.pop("source"), values.pop("first_row")
                planned.append(PlannedChunk(len(planned), source, first_row, Chunk(**values)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                break
    raise JobError(f"{path} is damaged.", "Start a new job.")


def check_rows(
    sources: Sequence[Source], planned: Iterable[PlannedChunk], check: Callable[[NumberedRow], object]
) -> None:
    """Read all rows. Raises UsageError with the number of the first row for which `check` raises an error."""
    for item in rows_of(sources, planned):
        try:
            check(item)
        except (UsageError, RequestRefused) as error:
            raise UsageError(f"Row {item.number}: {error.message}", "Correct it, or leave --on-bad-row out.") from error


def rows_of(
    sources: Sequence[Source], planned: Iterable[PlannedChunk], kept: Sequence[str] | None = None
) -> Iterator[NumberedRow]:
    """Yield the rows of chunks, in order. The last row of a chunk is yielded only after the chunk's hash is checked.

    From Parquet files, only the columns `kept` are read (None: all). Raises InputChanged.
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
    """Raise InputChanged if a file has changed since the plan was made.

    If only its time differs, compare the hashes.
    """
    for index, source in enumerate(sources):
        now = source_of(source.name, source.format)
        if now.size != source.size:
            raise InputChanged(
                f"{source.name} has {now.size} bytes, and had {source.size} when the job was planned.",
                "Restore the file, or start a new job.",
            )
        if now.modified != source.modified:
            verify(source, [chunk.extent for chunk in planned if chunk.source == index])


# Shards

# Environment variables of a process's rank and the number of processes: torchrun and Azure ML, Open MPI, Slurm, MPICH
# and Intel MPI, Kubernetes. Kubernetes sets no variable for the completions of an indexed job; a manifest must set it.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),
)
SLURM_ARRAY = "SLURM_ARRAY_TASK_COUNT"
MAX_SHARDS = 1_000_000


@dataclass(frozen=True)
class Shard:
    """Shard `index` (from 0) of `count`. Its text is "0/3" to "2/3"."""

    index: int
    count: int

    def chunks(self, total: int) -> range:
        """Return the indices of this shard's chunks, of `total`.

        Shards differ by at most one chunk, and may be empty.
        """
        return range(self.index * total // self.count, (self.index + 1) * total // self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str, environment: Mapping[str, str] = os.environ) -> Shard:
    """Return the shard "I/N", with I from 1 to N (0/N means N/N). "env" is the shard given by a launcher's variables.

    Raises UsageError.
    """
    if text == "env":
        return _launched(environment)
    if not (match := re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)):
        raise UsageError(f"{text!r} is not a shard.", "Give I/N, e.g. --shard 1/8 to --shard 8/8, or --shard env.")
    place, count = map(int, match.groups())
    if not (place <= count and 1 <= count <= MAX_SHARDS):
        raise UsageError(
            f"--shard {text} is out of range.", f"Give --shard I/N, I from 1 to N, and N at most {MAX_SHARDS:,}."
        )
    return Shard(place % count, count)


def _launched(environment: Mapping[str, str]) -> Shard:
    found = {names: _pair(environment, *names) for names in LAUNCHERS if environment.get(names[0])}
    if not found:
        raise UsageError(
            "--shard env found no launcher's variables.",
            f"Start it by a launcher that sets {', '.join(' and '.join(names) for names in LAUNCHERS)}; or give I/N.",
        )
    if len(set(found.values())) > 1:
        variables = ", ".join(f"{rank}={environment[rank]} {size}={environment[size]}" for rank, size in found)
        raise UsageError(
            f"The launchers' variables contradict each other: {variables}.",
            "Unset those that do not count (e.g. env -u SLURM_PROCID), or give --shard I/N.",
        )
    shard = next(iter(found.values()))
    if shard.count == 1 and environment.get(SLURM_ARRAY, "1") != "1":
        raise UsageError(
            f"A task of a Slurm array is rank 0 of 1, but the array has {environment[SLURM_ARRAY]} tasks.",
            'With --array=1-N, give --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT".',
        )
    return shard


def _pair(environment: Mapping[str, str], rank: str, size: str) -> Shard:
    if not environment.get(size):
        raise UsageError(f"{rank} is set, but {size} is not.", f"Set {size} to the number of processes, or give I/N.")
    texts = environment[rank], environment[size]
    if not all(re.fullmatch("[0-9]{1,9}", text) for text in texts) or not int(texts[0]) < int(texts[1]) <= MAX_SHARDS:
        raise UsageError(
            f"{rank}={texts[0]} and {size}={texts[1]} are not a rank and a number of processes.",
            f"{rank} counts from 0 to {size} - 1, and {size} is at most {MAX_SHARDS:,}.",
        )
    return Shard(int(texts[0]), int(texts[1]))
