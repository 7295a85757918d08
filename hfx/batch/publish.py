"""Joining the parts into the output, with all rows in order. The rows are counted and checked."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from hfx.batch.folder import SUMMARY, Folder, new_file, open_file, open_part, write_file
from hfx.batch.job import record_of
from hfx.batch.options import Threshold
from hfx.batch.plan import PlannedChunk, PlannedJob, Shard, count_rows
from hfx.batch.rows import layout_of
from hfx.batch.scored_parts import commonest, kind_of, part_format
from hfx.errors import JobError, TooManyErrors

PARTIAL = ".partial"
SHOWN_RANGES = 5
DAMAGE = (ValueError, LookupError, TypeError, RecursionError)


@dataclass(frozen=True)
class Counts:
    """The members of a summary: how many rows, error rows and rows with truncated texts, and the error rows by kind."""

    rows: int
    errors: int
    truncated_rows: int
    errors_by_kind: dict[str, int]


def publish(planned: PlannedJob, threshold: Threshold, partial: bool = False) -> dict[str, Any]:
    """Join the parts into the output, write summary.json, and return the summary.

    With `partial`, missing parts are skipped, and the names of the files are marked as partial. Raises JobError for
    missing or damaged parts, and TooManyErrors above the threshold. After an error, nothing is published.
    """
    folder, job, missing = planned.folder, planned.job, planned.missing()
    if missing and not partial:
        raise _incomplete(folder, [chunk.number for chunk in missing], len(planned.chunks))
    left = {chunk.number for chunk in missing}
    there = [chunk for chunk in planned.chunks if chunk.number not in left]
    summary = {
        "status": "partial" if missing else "completed",
        "model": job.model.name,
        "task": job.model.task,
        "inputs": len(job.inputs),
        **_write(planned, there, threshold, PARTIAL if missing else ""),
        "missing_rows": count_rows(missing),
    }
    name = f"summary{PARTIAL}.json" if missing else SUMMARY
    text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    write_file(folder.path / name, lambda file: file.write(text.encode()))
    return summary


def published(planned: PlannedJob, threshold: Threshold) -> dict[str, Any] | None:
    """Return the summary if the job is completed and its output is unchanged, else None. Nothing is written.

    Raises TooManyErrors, and JobError for a damaged part of a job without an output file (summary_only).
    """
    folder, chosen = planned.folder, planned.job.output
    output = chosen.file_name if chosen.action == "append_row" else None
    try:
        with open_file(folder.summary) as file:
            summary = json.load(file)
        counts = record_of(Counts, {field.name: summary[field.name] for field in fields(Counts)})
        is_whole = (summary["status"], summary.get("output")) == ("completed", output) and not planned.missing()
        if is_whole and output:
            with open_file(folder.path / output) as file:
                is_whole = hashlib.file_digest(file, "sha256").hexdigest() == summary["sha256"]
        elif is_whole:
            is_whole = count(planned, planned.chunks) == counts
    except (*DAMAGE, OSError):
        return None
    if is_whole:
        _figures(folder, counts, threshold, counts.rows)
    return dict(summary) if is_whole else None


def _incomplete(folder: Folder, missing: Sequence[int], chunks: int) -> JobError:
    """Return the error that names the missing parts and, according to the log, the shards that they belong to."""
    counts = {int(shard.partition("/")[2]) for event in folder.events() if (shard := event.get("shard"))}
    shards = [Shard(index, count) for count in counts for index in range(count)]
    lacking = [str(shard) for shard in shards if not set(missing).isdisjoint(shard.chunks(chunks))]
    of_shards = f", of the shards {', '.join(lacking[:SHOWN_RANGES])}" if lacking else ""
    again = f"`hfx batch resume {folder.path}{f' --shard {lacking[0]}' if lacking else ''}`"
    return JobError(
        f"{len(missing)} of {chunks} parts of {folder.path} are missing: {ranges(missing)}{of_shards}.",
        f"{again} computes them; `hfx batch publish {folder.path} --partial` writes what is there.",
    )


def _write(planned: PlannedJob, there: Sequence[PlannedChunk], threshold: Threshold, mark: str) -> dict[str, Any]:
    """Write the output file, and return its members of the summary. For summary_only, only count the rows."""
    folder, output, total = planned.folder, planned.job.output, count_rows(there)
    if output.action == "summary_only":
        return _figures(folder, count(planned, there), threshold, total)
    name = Path(output.file_name)
    target = folder.path / f"{name.stem}{mark}{name.suffix}"
    with new_file(target) as file:
        figures = _figures(folder, _joined(planned, there, file), threshold, total)
    return {"output": target.name, **figures, "sha256": file.sha256.hexdigest()}


def _figures(folder: Folder, counts: Counts, threshold: Threshold, total: int) -> dict[str, Any]:
    if threshold.is_exceeded(counts.errors, total):
        raise too_many(folder, counts.errors, total, threshold)
    return asdict(counts)


def too_many(folder: Folder, errors: int, total: int, threshold: Threshold) -> TooManyErrors:
    """Return the error for a job above its error threshold."""
    return TooManyErrors(
        f"{errors} of {total} rows are errors, and --error-threshold allows {threshold}.",
        f"What was done is kept: `hfx batch resume {folder.path} --error-threshold N` continues with a higher one.",
    )


def count(planned: PlannedJob, there: Iterable[PlannedChunk]) -> Counts:
    """Count the rows and errors of the existing parts `there`. Raises JobError for a damaged part."""
    with Path(os.devnull).open("wb") as nowhere:
        return _joined(planned, there, nowhere)


def _joined(planned: PlannedJob, there: Iterable[PlannedChunk], target: BinaryIO) -> Counts:
    """Join the parts into `target`, and check that each part has exactly the rows of its chunk. Raises JobError."""
    kinds: Counter[str] = Counter()
    rows = truncated = 0
    folder, job = planned.folder, planned.job
    parts = _Parts(folder, job.output.ending, there)
    try:
        for found in part_format(job, layout_of(job)).join(parts.files(), target):
            parts.check([number for number, _, _ in found])
            rows += len(found)
            truncated += sum(tokens > 0 for _, _, tokens in found)
            kinds.update(kind_of(error) for _, error, _ in found if error is not None)
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the error is from the file system, not from pyarrow
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise JobError(
            f"{parts.current} is damaged: {reason}.", f"Delete it, then `hfx batch resume {folder.path}`."
        ) from error
    return Counts(rows, kinds.total(), truncated, commonest(kinds))


class _Parts:
    """Opens the parts one after the other. `current` is the open part, whose row numbers are checked."""

    def __init__(self, folder: Folder, ending: str, there: Iterable[PlannedChunk]) -> None:
        self._parts = [(folder.part(chunk.number, ending), chunk.rows) for chunk in there]
        self._expected: Iterator[int] = iter(())
        self.current = folder.parts

    def files(self) -> Iterator[BinaryIO]:
        """Yield each part as an open file, which is closed before the next one.

        Raises ValueError for a damaged part.
        """
        for path, rows in self._parts:
            self.current, self._expected = path, iter(rows)
            with open_part(path) as file:
                yield file
            if (lacking := next(self._expected, None)) is not None:
                raise ValueError(f"the row {lacking} is missing")

    def check(self, rows: Sequence[int]) -> None:
        """Raise ValueError unless `rows` are the next row numbers of the chunk."""
        if [*islice(self._expected, len(rows))] != rows:
            raise ValueError(f"other rows belong in the place of {rows[0]} to {rows[-1]}")


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ranges: "0-3, 7"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [f"{first}-{last}" if first < last else str(first) for first, last in found]
    return ", ".join(texts[:SHOWN_RANGES]) + (", …" if len(texts) > SHOWN_RANGES else "")
