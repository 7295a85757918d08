"""Creating a job: finding the inputs, cutting them into chunks, and checking columns and settings, before scoring."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hfx.answering import Request
from hfx.batch.folder import JOB, LOCK, LOG, PARTS, PLAN, SPOOLED, TEMPORARY, Folder, new_file, storage
from hfx.batch.job import Job, JobModel, Output, read_job, this_machine, write_job
from hfx.batch.options import RunOptions
from hfx.batch.plan import PlannedJob, check_rows, cut_inputs, read_plan, write_plan
from hfx.batch.progress import check_machine
from hfx.batch.rows import Requests, check_settings, inputs_of, layout_of
from hfx.errors import JobError, UsageError
from hfx.names import GENERATION_TASKS, Task
from hfx.repository.staging import check_folder
from hfx.rows import Format, Source, columns_of, find_sources

STANDARD_INPUT = "-"
ENDINGS: dict[Format, str] = {"csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "text": "txt", "parquet": "parquet"}
# Rows per chunk: at most this many are computed again after a kill.
ROWS_OF_GENERATORS, ROWS_OF_ENCODERS = 64, 4096
KEEP_ALL, KEEP_NONE = "all", "none"
OnBadRow = Literal["record", "fail"]


@dataclass(frozen=True)
class JobSpec:
    """A job as the user describes it. `keep_columns` ("all", "none" or "A,B") replaces `output.keep`."""

    name: str
    inputs: Sequence[str]
    columns: Sequence[str]
    settings: Request
    seed: int
    output: Output
    keep_columns: str = KEEP_NONE
    format: Format | None = None
    mini_batch_size: int | None = None
    on_bad_row: OnBadRow = "record"


def create(
    folder: Folder, spec: JobSpec, task: Task, options: RunOptions, opened: Callable[[], JobModel], shared: bool = False
) -> PlannedJob:
    """Write plan.jsonl and job.json, and return the planned job. `opened` waits until a worker has opened the model.

    With `shared`, another shard may have created the job already. Its files are then used if its job is the same.
    Raises JobError and UsageError.
    """
    columns = inputs_of(task, spec.columns, spec.settings)
    check_settings(task, spec.settings)
    sources = find_sources(_spooled(folder, spec.inputs, spec.format), spec.format)
    output = replace(spec.output, keep=_kept(spec.keep_columns, sources))
    rows = spec.mini_batch_size or default_rows(task)
    is_planned = shared and folder.has(JOB)
    cut = [] if is_planned else cut_inputs(sources, [*columns.values(), *output.keep], rows)
    planned = read_plan(folder) if is_planned else write_plan(folder, cut)
    job = Job(
        model=opened(),
        inputs=sources,
        columns=columns,
        settings=spec.settings,
        seed=spec.seed,
        output=output,
        mini_batch_size=rows,
        machine=this_machine(options.in_process),
        run=options.as_json(),
    )
    layout_of(job)
    if spec.on_bad_row == "fail" and not is_planned:
        check_rows(sources, planned, Requests.of(job))
    if folder.has(JOB):  # another process may have been faster
        if not shared:
            raise _occupied(folder)
        return PlannedJob(folder, planned, _same(folder, job, options))
    write_job(folder, job)
    return PlannedJob(folder, planned, job)


def default_rows(task: Task) -> int:
    """Return the default number of rows per chunk."""
    return ROWS_OF_GENERATORS if task in GENERATION_TASKS else ROWS_OF_ENCODERS


def prepare(folder: Folder, shared: bool = False) -> None:
    """Create the folder of a job. Raises JobError if it contains other files, or (unless `shared`) a job."""
    check_folder(folder.path, "--output")
    with storage(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in folder.path.iterdir())
    if shared and JOB in names:
        return
    if JOB in names:
        raise _occupied(folder)
    own = (PARTS, PLAN, LOCK, LOG)  # left by an interrupted `create`
    foreign = [name for name in names if name not in own and not name.startswith((SPOOLED, TEMPORARY))]
    if foreign:
        raise JobError(f"{folder.path} holds other files, such as {foreign[0]}.", "Give a new folder as --output.")
    with storage(folder.path):
        folder.parts.mkdir(exist_ok=True)


def _occupied(folder: Folder) -> JobError:
    fix = f"`hfx batch resume {folder.path}` continues it; or give another --output."
    return JobError(f"{folder.path} already has a batch job.", fix)


def _spooled(folder: Folder, inputs: Sequence[str], form: Format | None) -> list[str]:
    """Return the inputs, with `-` replaced by a copy of the standard input in the job's folder."""
    if STANDARD_INPUT not in inputs:
        return list(inputs)
    if form is None or inputs.count(STANDARD_INPUT) > 1:
        raise UsageError("The standard input has no ending that says its format.", "Give - once, and --input-format.")
    copy = folder.path / f"{SPOOLED}{ENDINGS[form]}"
    with new_file(copy) as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return [str(copy) if name == STANDARD_INPUT else name for name in inputs]


def _kept(text: str, sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the columns of --keep-columns. Raises UsageError for "all" if the files have different columns."""
    if text == KEEP_NONE:
        return ()
    headers = [columns_of(source) for source in sources]
    if text == KEEP_ALL:
        differing = next((at for at, header in enumerate(headers) if set(header) != set(headers[0])), None)
        if differing is not None:
            raise UsageError(
                f"{sources[differing].name} has other columns than {sources[0].name}.", "Name those to keep: a,b."
            )
        return headers[0]
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def _same(folder: Folder, job: Job, options: RunOptions) -> Job:
    """Return the job in the folder.

    Raises JobError if it differs from `job`, or was planned on another kind of machine.
    """
    there = read_job(folder)
    check_machine(there, options)
    neutral = replace(job, machine=there.machine, run=there.run, inputs=there.inputs)
    names = [source.name for source in there.inputs]
    if neutral != there or names != [source.name for source in job.inputs]:
        raise JobError(
            f"{folder.path} has a batch job with other inputs or settings.",
            "Give all shards the same options, or another --output.",
        )
    return there
