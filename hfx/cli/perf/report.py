"""`hfx perf report`: write result files as one HTML page, and their charts as SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hfx.cli.output import counted, reporter
from hfx.cli.perf.loads import check_output
from hfx.errors import UsageError
from hfx.options import Option
from hfx.repository.staging import check_folder, write_output

if TYPE_CHECKING:
    from hfx.perf.results import Result


def command(
    context: typer.Context,
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULT...", help="Result files written by `hfx perf` or `hfx tune`.")
    ],
    output: Annotated[Path, Option("--output", "-o", help="HTML file to write.", metavar="FILE")] = Path("report.html"),
    svg: Annotated[
        Path | None, Option(help="Also write each chart as SVG, light and dark, to this folder.", metavar="DIR")
    ] = None,
) -> None:
    """Write result files as one HTML page that needs no network, and optionally as SVG charts.

    Examples:
      hfx perf report load.json
      hfx perf report before.json after.json --output report.html --svg pictures
    """
    report = reporter(context)
    check_output(output)
    if output.resolve() in [path.resolve() for path in results]:
        raise UsageError(f"{output} is one of the results.", "Give another --output.")
    if svg is not None:
        _folder(svg)
    from hfx.perf.results import read_result

    read = [read_result(path) for path in results]
    with report.progress("Drawing"):
        from hfx.perf.report.page import html

        write_output(output, html(read))
        pictures = [] if svg is None else _pictures(read, svg)
    size = output.stat().st_size
    lines = [f"Wrote {output} ({size / 1e6:.1f} MB, {counted(len(read), 'result')})."]
    lines += [f"Wrote {counted(len(pictures), 'picture')} into {svg}."] if svg is not None else []
    report.result({"page": str(output), "bytes": size, "pictures": [str(path) for path in pictures]}, lines)


def _pictures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write every chart of RESULTS to FOLDER, in both themes; number the files if there are several results."""
    from hfx.perf.report.charts import DARK, LIGHT, charts, svg

    written = []
    for index, result in enumerate(results, 1):
        prefix = f"{index}-" if len(results) > 1 else ""
        for chart in charts(result):
            for theme, colours in (("light", LIGHT), ("dark", DARK)):
                path = folder / f"{prefix}{chart.name}-{theme}.svg"
                write_output(path, svg(chart, colours), "--svg")
                written.append(path)
    return written


def _folder(path: Path) -> None:
    check_folder(path, "--svg")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} can't be a folder: {error.strerror}.", "Give another --svg.") from error
