"""`hfx perf tools`: the load generators that `hfx perf run --tool` takes, and fetching perf_analyzer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from hfx.cli.output import reporter


def command(
    context: typer.Context,
    tool: Annotated[
        Literal["perf_analyzer"] | None, typer.Argument(metavar="[perf_analyzer]", help="What to fetch.")
    ] = None,
) -> None:
    """List the load generators, or fetch NVIDIA's perf_analyzer.

    Examples:
      hfx perf tools
      hfx perf tools perf_analyzer
    """
    from hfx.perf.tools import perf_analyzer

    report = reporter(context)
    if tool is not None:
        with report.progress(f"Fetching {tool}"):
            program = perf_analyzer.fetch()
        value = {"tool": tool, "version": program.version, "path": str(program.path), "command": program.command}
        report.result(
            value, [f"perf_analyzer {program.version} is at {program.path}", f"Run it with: {program.command}"]
        )
        return
    found = perf_analyzer.tools()
    rows = [(each.name, each.version or "-", each.about, each.where or each.fix) for each in found]
    report.table({"tools": [asdict(each) for each in found]}, ("tool", "version", "what it is", "where"), rows)
