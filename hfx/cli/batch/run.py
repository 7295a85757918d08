"""`hfx batch run` and `resume`: a job from its inputs to its output, and on after an interruption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from hfx.cli.batch.running import (
    EngineOptions,
    PlaceOptions,
    Watcher,
    WorkOptions,
    opened_runner,
    report_end,
    run_options,
    warn_of_unknown,
    working,
)
from hfx.cli.commands import grouped
from hfx.cli.connection import PublishedName
from hfx.cli.infer_options import EncoderOptions, GenerationOptions, checked, settings
from hfx.cli.interrupts import deferred
from hfx.cli.output import reporter
from hfx.errors import UsageError
from hfx.names import SEED

if TYPE_CHECKING:
    from hfx.batch.create import JobSpec


@dataclass(frozen=True)
class InputOptions:
    """What is read."""

    PANEL: ClassVar[str] = "Input"

    input: Annotated[list[str] | None, typer.Option(help="The same as INPUT; may be given several times.")] = None
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[INPUT=]COLUMN", help="The column of the text; question=A and context=B of question answering."
        ),
    ] = None
    input_format: Annotated[
        Literal["csv", "tsv", "jsonl", "text", "parquet"] | None,
        typer.Option(help="What the inputs are, where their endings don't say it; needed for the standard input (-)."),
    ] = None
    on_bad_row: Annotated[
        Literal["record", "fail"], typer.Option(help="Rows that can't be read: error rows, or the end before any work.")
    ] = "record"
    mini_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Rows that are published together; default 64, of encoders 4096.")
    ] = None


@dataclass(frozen=True)
class OutputOptions:
    """What is written."""

    PANEL: ClassVar[str] = "Output"

    output: Annotated[Path, typer.Option("--output", "-o", help="The new folder of the job.", metavar="DIR")]
    output_action: Annotated[
        Literal["append_row", "summary_only"], typer.Option(help="One file of all rows, or only the parts.")
    ] = "append_row"
    output_file_name: Annotated[
        str, typer.Option(help="Its name in that folder; .csv, .jsonl or .parquet.", metavar="NAME")
    ] = "predictions.csv"
    keep_columns: Annotated[str, typer.Option(metavar="all|none|A,B", help="Columns of the input to copy.")] = "none"
    output_prefix: Annotated[
        str, typer.Option(help="Before the names of predictions, e.g. predicted_.", metavar="PREFIX")
    ] = ""


@grouped
def run(
    ctx: typer.Context,
    name: PublishedName,
    source: InputOptions,
    target: OutputOptions,
    place: PlaceOptions,
    work: WorkOptions,
    engine: EngineOptions,
    encoder: EncoderOptions,
    generation: GenerationOptions,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT", help="Files (also .gz), folders, globs, s3:// gs:// abfs:// URIs, or -."),
    ] = None,
) -> None:
    """Answer each row of CSV, TSV, JSON lines, text or Parquet files; the output has a row for each, in order.

    All files are checked before anything is computed. A row that can't be answered gets an error in its place. A run
    that ends early loses nothing: `hfx batch resume` goes on, and the output has the same bytes.

    Examples:
      hfx batch run sentiment reviews.csv --column text --output scored
      hfx batch run faq 'data/*.jsonl' --column question=q --column context=c --output answers --workers 4
      hfx batch run sentiment reviews.parquet --output scored --url 127.0.0.1:8001
    """
    report = reporter(ctx)
    given_inputs = [*(inputs or []), *(source.input or [])]
    if not given_inputs:
        raise UsageError("There is no input.", "Give files: hfx batch run NAME FILE... --column COLUMN --output DIR.")
    with deferred():
        from hfx.batch.create import create, prepare
        from hfx.batch.folder import Folder
        from hfx.batch.models import describe
        from hfx.batch.options import RunOptions
        from hfx.batch.plan import parse_shard
        from hfx.batch.progress import finish, logged, missing_chunks, score_missing
    options = run_options(place, work, RunOptions(repository=str(Path("model_repository").absolute())))
    shard = None if work.shard is None else parse_shard(work.shard)
    task, metadata, _ = describe(name, options.place())
    chosen = checked(settings(task, encoder, generation), metadata)
    spec = _spec(name, given_inputs, chosen, source, target)
    folder = Folder(target.output)
    prepare(folder, shared=shard is not None)
    with working(folder, shard, f"Scoring by {name}", report) as show:
        folder.check_cancelled()
        show("planning")
        with opened_runner(engine, name, options, spec.settings, probe=True) as running:
            job, planned = create(folder, spec, task, options, running.open, shared=shard is not None)
            on_event = logged(folder, shard, Watcher.of(folder, planned, shard, show))
            score_missing(folder, job, planned, missing_chunks(folder, planned, shard), running, on_event)
        summary = finish(folder, job, planned, options.threshold, on_event)
    warn_of_unknown(job, report)
    report_end(folder, summary, shard, report)


def _spec(
    name: str, inputs: list[str], chosen: Mapping[str, list[Any]], source: InputOptions, target: OutputOptions
) -> JobSpec:
    """What the job is to do, with the settings `chosen`, of which the seed is one."""
    from hfx.batch.create import JobSpec
    from hfx.batch.job import Output

    output = Output(target.output_action, target.output_file_name, (), target.output_prefix)
    settings, seed = {key: value for key, value in chosen.items() if key != SEED}, chosen.get(SEED, [0])[0]
    return JobSpec(
        name, inputs, source.column or ["text"], settings, seed, output,
        target.keep_columns, source.input_format, source.mini_batch_size, source.on_bad_row,
    )  # fmt: skip


@grouped
def resume(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The job's folder.")],
    place: PlaceOptions,
    work: WorkOptions,
    engine: EngineOptions,
) -> None:
    """Score what is missing of a job and publish its output; what shapes the answers stays as it was.

    Inputs, model or machine that are not those of before are refused with the reason.

    Examples:
      hfx batch resume scored
      hfx batch resume scored --workers 4
    """
    report = reporter(ctx)
    with deferred():
        from hfx.batch.folder import Folder
        from hfx.batch.job import read_job
        from hfx.batch.options import RunOptions
        from hfx.batch.plan import parse_shard, read_plan
        from hfx.batch.progress import check_job, finish, logged, missing_chunks, score_missing
        from hfx.batch.publish import published
    job_folder = Folder(folder)
    job = read_job(job_folder)
    options = run_options(place, work, RunOptions.of(job.run))
    shard = None if work.shard is None else parse_shard(work.shard)
    planned = read_plan(job_folder)
    if (summary := published(job_folder, job, planned, options.threshold)) is not None:
        report_end(job_folder, summary, shard, report)  # also where nothing can be written
        return
    with working(job_folder, shard, f"Scoring by {job.model.name}", report) as show:
        job_folder.uncancel()
        on_event = logged(job_folder, shard, Watcher.of(job_folder, planned, shard, show))
        if missing := missing_chunks(job_folder, planned, shard):
            with opened_runner(engine, job.model.name, options, job.settings) as running:
                check_job(job, planned, running.open(), options)
                score_missing(job_folder, job, planned, missing, running, on_event)
        summary = finish(job_folder, job, planned, options.threshold, on_event)
    warn_of_unknown(job, report)
    report_end(job_folder, summary, shard, report)
