"""`hfx batch run` and `resume`: run a job, or continue it after an interruption."""

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
from hfx.options import Option, option

if TYPE_CHECKING:
    from hfx.batch.create import JobSpec


@dataclass(frozen=True)
class InputOptions:
    """The options of the files and columns to read."""

    PANEL: ClassVar[str] = "Input"

    input: list[str] | None = option(None, "Same as INPUT. Repeatable.")
    column: list[str] | None = option(
        None,
        "Column of the text. Question answering: question=A and context=B. A setting of each row: max_tokens=C. "
        "Default: text.",
        metavar="[INPUT=]COLUMN",
    )
    input_format: Literal["csv", "tsv", "jsonl", "text", "parquet"] | None = option(
        None, "Format of the inputs. Default: by file name. Required for standard input (-)."
    )
    on_bad_row: Literal["record", "fail"] = option(
        "record", "Unreadable rows. record: write an error row. fail: stop before any work."
    )
    mini_batch_size: int | None = option(None, "Rows per chunk. Default: 4096 for encoders, 64 for generators.", min=1)


@dataclass(frozen=True)
class OutputOptions:
    """The options of the output and its place."""

    PANEL: ClassVar[str] = "Output"

    output: Annotated[Path, Option("--output", "-o", help="Folder of the job, to be created.", metavar="DIR")]
    output_action: Literal["append_row", "summary_only"] = option(
        "append_row", "append_row: one file with all rows. summary_only: the parts only."
    )
    output_file_name: str = option("predictions.csv", "Name of that file: *.csv, *.jsonl or *.parquet.", metavar="NAME")
    keep_columns: str = option("none", "Input columns to copy to the output.", metavar="all|none|A,B")
    output_prefix: str = option("", "Prefix for the names of prediction columns, such as predicted_.", metavar="PREFIX")


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
        typer.Argument(
            metavar="INPUT",
            help="Files (also .gz), folders, globs, s3://, gs:// or abfs:// URIs, or - for standard input.",
        ),
    ] = None,
) -> None:
    """Score each row of CSV, TSV, JSON lines, text or Parquet files; the output has one row for each, in order.

    All files are checked before any work starts. A row that can't be scored gets an error row. `hfx batch resume`
    continues an interrupted run; its output has the same bytes as an uninterrupted run's.

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
        from hfx.batch.progress import finish, logged, score_missing
        from hfx.batch.rows import check_columns, inputs_of
    options = run_options(place, work, RunOptions(repository=str(Path("model_repository").absolute())))
    shard = None if work.shard is None else parse_shard(work.shard)
    task, metadata, _ = describe(name, options.place())
    chosen = checked(settings(task, encoder, generation), metadata)
    check_columns(inputs_of(task, source.column or ["text"], chosen), metadata, chosen)
    spec = _spec(name, given_inputs, chosen, source, target)
    folder = Folder(target.output)
    prepare(folder, shared=shard is not None)
    with working(folder, shard, f"Scoring with {name}", report) as show:
        folder.check_cancelled()
        show("reading the inputs")
        with opened_runner(engine, name, options, spec.settings, probe=True) as running:
            planned = create(folder, spec, task, options, running.open, shared=shard is not None)
            on_event = logged(folder, shard, Watcher(planned, shard, show))
            score_missing(planned, running, on_event, shard)
        summary = finish(planned, options.threshold, on_event)
    warn_of_unknown(planned.job, report)
    report_end(folder, summary, shard, report)


def _spec(
    name: str, inputs: list[str], chosen: Mapping[str, list[Any]], source: InputOptions, target: OutputOptions
) -> JobSpec:
    """Return the specification of the job; `chosen` are the settings, with the seed."""
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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the job.")],
    place: PlaceOptions,
    work: WorkOptions,
    engine: EngineOptions,
) -> None:
    """Score the missing rows of a job and publish its output.

    Settings that affect answers can't be changed. A job whose inputs, model or processor have changed is refused.

    Examples:
      hfx batch resume scored
      hfx batch resume scored --workers 4
    """
    report = reporter(ctx)
    with deferred():
        from hfx.batch.folder import Folder
        from hfx.batch.job import read_job
        from hfx.batch.options import RunOptions
        from hfx.batch.plan import PlannedJob, parse_shard, read_plan
        from hfx.batch.progress import check_job, finish, logged, score_missing
        from hfx.batch.publish import published
    job_folder = Folder(folder)
    job = read_job(job_folder)
    options = run_options(place, work, RunOptions.of(job.run))
    shard = None if work.shard is None else parse_shard(work.shard)
    planned = PlannedJob(job_folder, read_plan(job_folder), job)
    if (summary := published(planned, options.threshold)) is not None:
        report_end(job_folder, summary, shard, report)  # works even if nothing can be written
        return
    with working(job_folder, shard, f"Scoring with {job.model.name}", report) as show:
        job_folder.uncancel()
        on_event = logged(job_folder, shard, Watcher(planned, shard, show))
        if planned.missing(shard):
            with opened_runner(engine, job.model.name, options, job.settings) as running:
                check_job(planned, running.open(), options)
                score_missing(planned, running, on_event, shard)
        summary = finish(planned, options.threshold, on_event)
    warn_of_unknown(job, report)
    report_end(job_folder, summary, shard, report)
