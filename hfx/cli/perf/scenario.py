"""`hfx perf scenario`: canned measurements of full-size models beside their peers, with goals and published figures."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hfx.cli.output import Reporter, reporter
from hfx.cli.perf.stopping import ending_early
from hfx.errors import UsageError

if TYPE_CHECKING:
    from hfx.perf.results import Result
    from hfx.perf.scenarios import Options, Scenario


def command(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Scenarios; --list shows them.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the scenarios and measure nothing.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    model: Annotated[
        str, typer.Option(help="Another model: a checkpoint (folder or hub id), or with --url a name there.")
    ] = "",
    url: Annotated[str, typer.Option(help="HOST:PORT of a server that has --model; none is started then.")] = "",
    rounds: Annotated[int | None, typer.Option(help="Turns of each way.", min=1, max=100)] = None,
    peers: Annotated[str | None, typer.Option(help="Of the scenario's peers only these: A,B, or none.")] = None,
    data: Annotated[Path | None, typer.Option(help="Texts of yours: CSV, TSV, JSON lines or Parquet.")] = None,
    column: Annotated[str, typer.Option(help="Column of the texts.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="A smoke run on a tiny model: its figures mean nothing.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Result file; of several scenarios, a folder of NAME.json.")
    ] = None,
) -> None:
    """Run canned measurements: shapes of published models with random weights, their loads, their peers, goals."""
    report = reporter(context)
    if list_:
        _list(report)
        return
    wanted = _chosen(names or [], every)
    if column and data is None:
        raise UsageError("--column is about --data.", "Add --data F.csv.")
    if url and not model:
        raise UsageError("--url needs the name of a model there.", "Add --model NAME.")
    targets = _targets(wanted, output)
    with report.progress("Preparing") as say, ending_early() as stop:
        chosen = None if peers is None else tuple(name for name in peers.split(",") if name and name != "none")
        options = _options(model, url, rounds, chosen, data, column, quick, say, stop)
        results = _run(wanted, options, targets)
    _print(report, results)


def _chosen(names: Sequence[str], every: bool) -> list[Scenario]:
    from difflib import get_close_matches

    from hfx.perf.scenarios import SCENARIOS

    if bool(names) == every:
        raise UsageError("Which scenarios?", f"Name some of {', '.join(SCENARIOS)}, or add --all.")
    for name in names:
        if name not in SCENARIOS:
            near = get_close_matches(name, SCENARIOS)
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            raise UsageError(f"There is no scenario {name!r}.", f"{hint}`hfx perf scenario --list` shows them.")
    return [SCENARIOS[name] for name in (SCENARIOS if every else dict.fromkeys(names))]


def _targets(wanted: Sequence[Scenario], output: Path | None) -> list[Path | None]:
    """The file of each scenario, known to be writable before an hour of work."""
    from hfx.perf.results import check_writable

    if output is None:
        return [None] * len(wanted)
    if not output.is_dir() and len(wanted) > 1:
        raise UsageError(f"{output} is no folder, and there are {len(wanted)} results.", "Give a folder (--output).")
    targets = [output / f"{scenario.name}.json" if output.is_dir() else output for scenario in wanted]
    for target in targets:
        check_writable(target)
    return [*targets]


def _options(
    model: str,
    url: str,
    rounds: int | None,
    peers: tuple[str, ...] | None,
    data: Path | None,
    column: str,
    quick: bool,
    say: Callable[[str], None],
    stop: threading.Event,
) -> Options:
    from hfx.perf.scenarios import Options
    from hfx.perf.scenarios.texts import Data

    line = shlex.join(["hfx", *sys.argv[1:]]) if sys.argv[1:2] == ["perf"] else "hfx perf scenario"
    texts = Data(data, column) if data else None
    return Options(rounds, peers, texts, quick, model, url, command=line, say=say, stop=stop)


def _run(wanted: Sequence[Scenario], options: Options, targets: Sequence[Path | None]) -> list[Result]:
    """Each scenario's result is on disk before the next one begins."""
    from dataclasses import replace

    from hfx.perf.machine import machine
    from hfx.perf.results import write_result
    from hfx.perf.scenarios import run_scenario

    options, found = replace(options, machine=machine(rates=not options.quick)), []
    for scenario, target in zip(wanted, targets, strict=True):
        result = run_scenario(scenario, options)
        if target is not None:
            write_result(result, target)
        found.append(result)
        if options.stop.is_set():
            break
    return found


def _list(report: Reporter) -> None:
    from hfx.perf.scenarios import SCENARIOS

    rows = [
        (each.name, each.model.shape, ", ".join(dict.fromkeys(way.name for way in each.peers)) or "-", each.title)
        for each in SCENARIOS.values()
    ]
    listed = [dict(zip(("name", "shape", "peers", "title"), row, strict=True)) for row in rows]
    report.table({"scenarios": listed}, ("NAME", "SHAPE", "PEERS", "WHAT"), rows)


def _print(report: Reporter, results: Sequence[Result]) -> None:
    import json

    from hfx.perf.results import to_json

    values = [json.loads(to_json(result)) for result in results]
    lines = [line for result in results for line in _lines(result)]
    report.result(values[0] if len(values) == 1 else {"results": values}, lines)


def _lines(result: Result) -> list[str]:
    from hfx.perf.report.table import to_lines
    from hfx.perf.report.tables import goals, goals_table, published_table, warnings
    from hfx.perf.scenarios.verdicts import result_table

    lines = [result.title, *(f"  {words}" for words in warnings(result)), ""]
    if result.details.get("quick"):
        lines[1:1] = ["  A smoke run on a tiny model: these figures mean nothing."]
    for table in (result_table(result), goals_table(goals(result)), published_table(result)):
        lines += [*to_lines(table), ""] if table else []
    return lines
