"""`hfx verify`: a published model against its checkpoint's recorded answers and labelled data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hfx.cli.output import reporter
from hfx.errors import HfxError, UsageError

if TYPE_CHECKING:
    from hfx.exporter.verify import Ask


class Device(StrEnum):
    """Which files are verified."""

    CPU = "cpu"
    GPU = "gpu"


def command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The published model.")],
    data: Annotated[Path | None, typer.Option(help="Labelled CSV or TSV with a header.")] = None,
    input_column: Annotated[list[str] | None, typer.Option(help="Column of an input, in the task's order.")] = None,
    target_column: Annotated[str | None, typer.Option(help="Column of the right answers.")] = None,
    metric: Annotated[str | None, typer.Option(help="Metric; each task has one.")] = None,
    minimum: Annotated[float | None, typer.Option("--min", help="Least value of the metric.")] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="Share of answers, and of the metric, that may be lost against the checkpoint.")
    ] = None,
    url: Annotated[str, typer.Option(help="gRPC address of a server; in this process without it.")] = "",
    device: Annotated[Device, typer.Option(help="The files that are verified, or that the server runs.")] = Device.CPU,
    repository: Annotated[Path, typer.Option(help="Where the model is published.")] = Path("model_repository"),
) -> None:
    """Verify a published model again: against its checkpoint's answers, and on labelled data."""
    if data is None and (input_column or target_column or metric or minimum is not None):
        raise UsageError("--input-column, --target-column, --metric and --min are about --data.", "Add --data F.csv.")
    if minimum is not None and max_drop is not None:
        raise UsageError("--min and --max-drop exclude each other.", "Leave one of them out.")
    from hfx.exporter import verify
    from hfx.repository import recover

    report = reporter(context)
    recover(repository)
    published = verify.open_published(repository, name)
    figures: dict[str, Any] = {
        "name": name,
        "task": str(published.task.task),
        "device": device.value,
        "url": url or None,
    }
    with report.progress("Verifying"), _model(repository, name, device.value, url) as ask:
        figures["parity"] = verify.against_checkpoint(published, ask, device.value, max_drop)
        if data is not None:
            columns = tuple(input_column or ())
            options = verify.DataOptions(data, columns, target_column, metric, minimum, max_drop)
            figures["data"] = verify.on_data(published, ask, options)
    report.result(figures, _lines(figures))


@contextmanager
def _model(repository: Path, name: str, device: str, url: str) -> Iterator[Ask]:
    """How the model is asked: through the server at `url`, or in this process."""
    if not url:
        from hfx.local import LocalModel

        model = LocalModel.open(repository, name, device)  # type: ignore[arg-type]
        yield model.infer_all
        return
    from hfx.client import Client
    from hfx.local import plain_answer, scalar_outputs

    scalars = scalar_outputs(repository, name)
    with Client(url) as client:

        def ask(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
            rows = [{key: value if isinstance(value, list) else [value] for key, value in r.items()} for r in requests]
            answers = []
            for index, outcome in enumerate(client.infer_each(name, rows)):
                if isinstance(outcome, HfxError):
                    raise type(outcome)(f"Request {index}: {outcome.message}", outcome.fix)
                answers.append(plain_answer(outcome, scalars))
            return answers

        yield ask


def _lines(figures: dict[str, Any]) -> list[str]:
    parity = figures["parity"]
    lines = [
        f"{figures['name']} answers like its checkpoint ({parity['precision']}, "
        f"{'through ' + figures['url'] if figures['url'] else 'in this process'}).",
        f"  {parity['requests']} requests: agreement {100 * parity['agreement']:.2f} %, "
        f"score drift {parity['mean_drift']:.1e}",
    ]
    if data := figures.get("data"):
        lines.append(f"  {data['metric']} on {data['file']} ({data['rows']} rows): {data['value']:.4f}")
    return lines
