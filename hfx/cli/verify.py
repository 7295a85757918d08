"""`hfx verify`: compare a published model with recorded answers of its checkpoint, and measure it on labelled data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hfx.cli.connection import DEFAULT_REPOSITORY, PublishedName
from hfx.cli.export_summary import decisions, equal_answers
from hfx.cli.infer_options import checked
from hfx.cli.output import reporter
from hfx.cli.serve_options import Device
from hfx.errors import UsageError
from hfx.names import GENERATION_TASKS, Task
from hfx.options import Option

if TYPE_CHECKING:
    from hfx.client import Client
    from hfx.exporter.verify import DataOptions, Infer


def command(
    context: typer.Context,
    name: PublishedName,
    data: Annotated[Path | None, Option(help="Labelled rows: CSV, TSV, JSON lines or Parquet.", metavar="FILE")] = None,
    input_column: Annotated[
        list[str] | None,
        Option(help="Input column. Repeatable, in the order of the task's inputs.", metavar="COLUMN"),
    ] = None,
    target_column: Annotated[str | None, Option(help="Column with the correct answers.", metavar="COLUMN")] = None,
    metric: Annotated[
        str | None,
        Option(help="Metric. Default: the task's own. Generators have two: rouge and exact_match.", metavar="METRIC"),
    ] = None,
    minimum: Annotated[
        float | None, Option("--min", help="Lowest value of the metric that passes.", metavar="VALUE")
    ] = None,
    max_drop: Annotated[
        float | None,
        Option(
            help="Largest loss against the checkpoint that passes, as a share of the answers and of the metric.",
            metavar="SHARE",
        ),
    ] = None,
    url: Annotated[
        str,
        Option(help="Server to verify, as for `hfx infer`. Default: run the model in this process.", metavar="URL"),
    ] = "",
    page: Annotated[
        Path | None,
        Option("--report", help="Also write all facts and figures to a file, .html or .json.", metavar="FILE"),
    ] = None,
    device: Annotated[Device, Option(help="Device to verify on. With --url: device of the server.")] = "cpu",
    repository: Annotated[Path, Option(help="Model repository.", metavar="DIR")] = DEFAULT_REPOSITORY,
) -> None:
    """Compare a published model with its checkpoint's recorded answers, and measure it on labelled data.

    Examples:
      hfx verify sentiment
      hfx verify sentiment --data dev.csv --url 127.0.0.1:8001
      hfx verify sentiment --report sentiment.html
    """
    if data is None and (input_column or target_column or metric or minimum is not None):
        raise UsageError("--input-column, --target-column, --metric and --min need --data.", "Add --data F.csv.")
    if data is not None and not data.is_file():
        raise UsageError(f"There is no file {data} (--data).", "Give a CSV, TSV, JSON-lines or Parquet file.")
    if minimum is not None and max_drop is not None:
        raise UsageError("--min and --max-drop exclude each other.", "Leave one of them out.")
    from hfx.exporter.verify import DataOptions

    columns = tuple(input_column or ()), target_column
    options = DataOptions(data, *columns, metric, minimum, max_drop) if data else None
    report = reporter(context)
    with report.progress("Verifying"):
        figures = _verified(repository, name, device, url, max_drop, options, page)
    report.result(figures, _lines(figures))


def _verified(
    repository: Path,
    name: str,
    device: Device,
    url: str,
    max_drop: float | None,
    options: DataOptions | None,
    page: Path | None,
) -> dict[str, Any]:
    """Return the figures of a verification, and write its report to `page`, if given. Raises VerificationFailed."""
    from hfx.exporter import verify
    from hfx.repository import recover

    if page is not None:
        from hfx.cli.verify_report import check_report, of_rerun, reported

        check_report(page, repository, options.path if options else None)
    recover(repository)
    published = verify.open_published(repository, name)
    task = published.task.task
    if getattr(published.manifest.precision, device) is None:
        raise UsageError(f"{name} was not built for {device}.", "Use the other --device, or export it for both.")
    figures: dict[str, Any] = {"name": name, "task": str(task), "device": device, "url": url or None}
    alone = verify.ALONE if published.kind is None else len(published.recorded.requests) if page else 0
    with (
        reported(page, published, repository, figures) if page else nullcontext(),
        _model(repository, name, task, device, url) as infer,
    ):
        rerun = verify.run_again(published, infer, alone)
        figures["parity"] = verify.figures_of(published, rerun, device, max_drop)
        if page:
            figures |= {"report": str(page), **of_rerun(published, rerun, repository)}
        verify.judge(published, rerun, figures["parity"])
        if options is not None:
            figures["data"] = verify.measured(published, infer, options)
            verify.judge_data(published, options, figures["data"])
    return figures


@contextmanager
def _model(repository: Path, name: str, task: Task, device: Device, url: str) -> Iterator[Infer]:
    """Yield the function that queries the model: through the server at `url`, or in this process."""
    if not url and task in GENERATION_TASKS:
        from hfx.local.generator import LocalGenerator

        with LocalGenerator.open(repository, name, device) as generator:
            yield generator.infer_all
        return
    if not url:
        from hfx.local.encoder import LocalModel

        yield LocalModel.open(repository, name, device).infer_all
        return
    from hfx.cli.connection import Connection, connect

    with connect(Connection(url=url)) as client:
        yield served_infer(client, repository, name)


def served_infer(client: Client, repository: Path, name: str) -> Infer:
    """Return a function that queries NAME of `repository` on the server of `client`; its answers are as in process."""
    from hfx.answering import map_all
    from hfx.local import plain_answer, scalar_outputs

    scalars, metadata = scalar_outputs(repository, name), client.metadata(name)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return plain_answer(client.infer(name, checked(request, metadata)), scalars)

    return lambda requests: map_all(answer, requests, client.max_in_flight)


def agreement(parity: dict[str, Any]) -> str:
    """Return the figures of a comparison as text for people."""
    if "same" in parity:
        return f"{100 * parity['same']:.2f} % of {parity['requests']} whole texts equal the checkpoint's"
    return f"{equal_answers(parity)}; scores differ by {parity['mean_drift']:.1e} on average"


def _lines(figures: dict[str, Any]) -> list[str]:
    parity = figures["parity"]
    lines = [
        f"{figures['name']} answers like its checkpoint ({parity['precision']}, "
        f"{'through ' + figures['url'] if figures['url'] else 'in this process'}).",
        f"  {agreement(parity)}",
    ]
    if "alone" in parity:
        lines.append(
            f"  {parity['alone']} of them were also run alone: {parity['other_alone']} have different log-probabilities"
        )
    if data := figures.get("data"):
        lines.append(f"  {data['metric']} on {data['file']} ({data['rows']} rows): {data['value']:.4f}")
        lines += [f"  calibration error {data['calibration_error']:.4g}"] if "calibration_error" in data else []
        lines += [f"  at the export, {line}" for line in decisions(data.get("at_export", {}))]
    lines += [f"Wrote {figures['report']}."] if "report" in figures else []
    return lines
