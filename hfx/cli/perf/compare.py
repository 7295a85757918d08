"""`hfx perf compare`: devices, precisions, settings or peers under the same load, or result files of several machines.

Options and words only: what is compared is hfx.perf.compare's, the tables are hfx.perf.report's.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hfx.cli.groups import given, grouped
from hfx.cli.interrupts import deferred
from hfx.cli.output import Reporter, reporter
from hfx.cli.perf import loads
from hfx.cli.perf.live import live
from hfx.cli.perf.loads import DataOptions, LimitOptions, LoadOptions, SloOptions
from hfx.cli.perf.stopping import ending_early
from hfx.cli.serve import Device
from hfx.errors import UsageError

if TYPE_CHECKING:
    import threading

    from hfx.perf.compare.cost import Price
    from hfx.perf.compare.request import Request
    from hfx.perf.compare.side import Case
    from hfx.perf.results import Result

FILE_SUFFIX = ".json"


@dataclass(frozen=True)
class Ways:
    """What is compared: one of these, or result files."""

    devices: Annotated[
        str | None, typer.Option(metavar="cpu,gpu", help="The published model on each: a Triton is started for both.")
    ] = None
    target: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=HOST:PORT", help="Servers that run already: cpu=…, gpu=….")
    ] = None
    precisions: Annotated[
        str | None, typer.Option(metavar="fp32,int8,…", help="Exports of its checkpoint, or published models' names.")
    ] = None
    variants: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTING=A,B", help="Settings: max_queue_delay=0,500us, instances=1,2, threads, slots, …"),
    ] = None
    peers: Annotated[
        str | None, typer.Option(metavar="torch,…", help="Libraries and servers; PEER:PRECISION. `hfx perf peers`.")
    ] = None


@dataclass(frozen=True)
class CompareOptions:
    """Where the model is, how it is measured, and what becomes of it."""

    repository: Annotated[Path, typer.Option(help="Where the model is published.")] = Path("model_repository")
    device: Annotated[Device, typer.Option(help="Of --precisions and --variants.")] = Device.CPU
    checkpoint: Annotated[
        str, typer.Option(help="Of --precisions and --peers: folder or hub id; the manifest's without it.")
    ] = ""
    max_drop: Annotated[float | None, typer.Option(help="Of --precisions: as of `hfx export`.", min=0, max=1)] = None
    rounds: Annotated[int, typer.Option(help="Turns of each side.", min=1, max=100)] = 3
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", help="Generators: as a stream (default), or whole texts.")
    ] = None
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=P/h", help="Of an hour of a side or a device: cpu=$0.34/h."),
    ] = None
    output: Annotated[Path | None, typer.Option(metavar="F.json", help="Write the result file.")] = None


@grouped
def command(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME | A.json B.json …", help="A model, or result files.")],
    ways: Ways,
    load: LoadOptions,
    limit: LimitOptions,
    data: DataOptions,
    slo: SloOptions,
    options: CompareOptions,
) -> None:
    """Compare devices, precisions, settings or peers under the same load, or result files of several machines.

    Sides take turns, round by round; figures are medians, ratios are taken within each round. What can't be measured is
    named, and has no number. Ctrl-C ends it early, with the rounds so far.
    """
    report = reporter(context)
    with deferred():
        from hfx.perf.compare.cost import parse_prices
        from hfx.perf.results import check_writable

    prices = parse_prices(options.price or [])
    if options.output:
        check_writable(options.output)
    if any(name.endswith(FILE_SUFFIX) for name in names):
        _finish(_of_files(names, ways, prices), options, report)
        return
    if len(names) > 1:
        raise UsageError(f"One model at a time, not {' '.join(names)}.", "Compare their result files: A.json B.json.")
    request = _request(names[0], ways, options)
    with ending_early() as stop:
        result = _measured(request, _Work(load, limit, data, slo, options), prices, report, stop)
        _finish(result, options, report)
        if stop.is_set():
            raise KeyboardInterrupt


@dataclass(frozen=True)
class _Work:
    """The options that say what is asked, and how often."""

    load: LoadOptions
    limit: LimitOptions
    data: DataOptions
    slo: SloOptions
    options: CompareOptions


def _of_files(names: Sequence[str], ways: Ways, prices: Mapping[str, Price]) -> Result:
    from hfx.perf.compare.cost import check_labels
    from hfx.perf.compare.files import merge, read_results
    from hfx.perf.compare.outcome import with_prices
    from hfx.triton.server import DEVICES

    if not all(name.endswith(FILE_SUFFIX) for name in names) or given(ways):
        raise UsageError("Result files are compared with result files.", "Give A.json B.json and no model.")
    result = merge(read_results([Path(name) for name in names]), _line())
    check_labels(prices, [run.subject.label for run in result.runs], DEVICES)
    return with_prices(result, prices)


def _request(name: str, ways: Ways, options: CompareOptions) -> Request:
    from hfx.perf.compare.request import Request, chosen

    words = {kind: [value] if isinstance(value, str) else value for kind, value in given(ways).items()}
    kind, found = chosen(words)
    return Request(name, kind, found, options.repository, options.device.value, options.checkpoint, options.max_drop)


def _measured(
    request: Request, work: _Work, prices: Mapping[str, Price], report: Reporter, stop: threading.Event
) -> Result:
    """The rounds, as far as they got."""
    from hfx.perf.compare.comparison import base_label, check_measured, compare
    from hfx.perf.compare.cost import check_labels
    from hfx.perf.compare.outcome import outcome
    from hfx.perf.compare.request import labels, sides
    from hfx.perf.compare.side import Session
    from hfx.triton.server import DEVICES

    known = labels(request)
    if request.kind != "peers":  # their precision is in their labels, and chosen for them
        check_labels(prices, known, DEVICES)
    cases = _cases(request, work)
    notes: list[str] = []
    with live(report) as show:
        session = Session(show, report.note, stop)
        with sides(request, session, notes) as found:
            check_labels(prices, [*known, *(side.label for side in found)], DEVICES)
            runs = list(compare(found, cases, work.options.rounds, notes, session))
    if stop.is_set():
        notes.insert(0, "Interrupted: figures are of what was done until then.")
    check_measured(runs, notes)
    return outcome(request.title, _line(), runs, notes, prices, base_label(found, runs))


def _cases(request: Request, work: _Work) -> list[Case]:
    from hfx.perf.compare.request import metadata, task_of
    from hfx.perf.compare.side import Case
    from hfx.perf.measuring import MeasureSpec

    plans, slo = loads.plans(work.load, work.data.seed), loads.slo(work.slo)
    asks = loads.asks(work.data, metadata(request))
    if request.kind == "peers":
        from hfx.perf.compare.peers import peer_cases

        if slo or work.limit.duration or work.limit.stable or work.options.stream:
            raise UsageError(
                "Peers answer whole batches: --slo, --duration, --stable and --stream don't hold for them.",
                "Say how many requests: --requests.",
            )
        return peer_cases(plans, asks, task_of(request), work.limit.requests)
    return [
        Case(plan, MeasureSpec(asks, loads.limits(work.limit, plan), slo, stream=work.options.stream)) for plan in plans
    ]


def _finish(result: Result, options: CompareOptions, report: Reporter) -> None:
    """Write and print it."""
    import json

    from hfx.perf.compare.summary import best_table, machines_table
    from hfx.perf.report.comparisons import comparison_tables
    from hfx.perf.report.table import to_lines
    from hfx.perf.report.tables import warnings
    from hfx.perf.results import to_json, write_result

    if options.output:
        write_result(result, options.output)
    lines = [f"Warning: {each}" for each in warnings(replace(result, notes=()))]  # the notes stand under the table
    for table in (*comparison_tables(result), best_table(result), machines_table(result)):
        lines += ["", *to_lines(table)] if table else []
    lines += ["", f"Written to {options.output}."] if options.output else []
    report.result(json.loads(to_json(result)), lines if lines[0] else lines[1:])


def _line() -> str:
    return shlex.join(["hfx", *sys.argv[1:]])
