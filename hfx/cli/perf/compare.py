"""`hfx perf compare`: compare devices, precisions or settings under one load, or result files of several machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from hfx.cli.commands import given, grouped
from hfx.cli.interrupts import deferred, ending_early
from hfx.cli.output import Reporter, reporter
from hfx.cli.perf import loads
from hfx.cli.perf.loads import DataOptions, LimitOptions, LoadOptions, SloOptions
from hfx.cli.perf.printing import command_line, finish, live
from hfx.cli.serve_options import Device
from hfx.errors import UsageError
from hfx.options import option

if TYPE_CHECKING:
    import threading

    from hfx.perf.compare.candidates import Case, CompareSpec
    from hfx.perf.load import LoadLimits, Plan, Slo
    from hfx.perf.results import Result

FILE_SUFFIX = ".json"


@dataclass(frozen=True)
class KindOptions:
    """The options that say what to compare: one of these, or result files."""

    PANEL: ClassVar[str] = "What is compared"

    devices: str | None = option(
        None, "Run the published model on each device. Starts a Triton for each.", metavar="cpu,gpu"
    )
    target: list[str] | None = option(
        None, "Running servers to compare: cpu=…, gpu=…. Repeatable.", metavar="LABEL=HOST:PORT"
    )
    precisions: str | None = option(
        None, "Precisions to export its checkpoint to, or names of published models.", metavar="fp32,int8,…"
    )
    variants: list[str] | None = option(
        None,
        "Values of a setting, such as max_queue_delay=0,500us or instances=1,2. Repeatable.",
        metavar="SETTING=A,B",
    )


@dataclass(frozen=True)
class CompareOptions:
    """The options for the place of the model, its measurement, and the result."""

    PANEL: ClassVar[str] = "Measurement and output"

    repository: loads.Repository = Path("model_repository")
    device: Device = option("cpu", "With --precisions or --variants: device to run on.")
    checkpoint: str = option(
        "", "With --precisions: checkpoint (folder or hub id). Default: the manifest's.", metavar="MODEL"
    )
    max_drop: float | None = option(None, "With --precisions: as for `hfx export`.", min=0, max=1, metavar="SHARE")
    rounds: int = option(3, "Number of times that each candidate is measured.", min=1, max=100)
    stream: loads.Stream = None
    price: list[str] | None = option(
        None, "Price per hour of a candidate or device: cpu=$0.34/h. Repeatable.", metavar="LABEL=P/h"
    )
    output: loads.Output = None


@grouped
def command(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME|RESULT", help="Published model, or result files (.json).")
    ],
    kinds: KindOptions,
    load: LoadOptions,
    limit: LimitOptions,
    data: DataOptions,
    slo: SloOptions,
    options: CompareOptions,
) -> None:
    """Compare devices, precisions or settings under the same load, or result files of several machines.

    Candidates take turns in rounds. Figures are medians; ratios are computed within each round. Candidates that can't
    be measured are listed without figures. Ctrl-C stops early and keeps the rounds so far.

    Examples:
      hfx perf compare sentiment --devices cpu,gpu --price 'cpu=$0.34/h' --price 'gpu=$1.20/h'
      hfx perf compare sentiment --precisions fp32,int8 --rounds 5
      hfx perf compare before.json after.json
    """
    report = reporter(context)
    loads.check_output(options.output)
    plans, wanted = loads.plans(load, data.seed), loads.slo(slo)
    limited = [(plan, loads.limits(limit, plan)) for plan in plans]
    with deferred():
        from hfx.perf.compare.cost import check_labels, parse_prices, with_prices
        from hfx.perf.compare.kinds import labels
        from hfx.triton.server import DEVICES

    prices = parse_prices(options.price or [])
    if any(name.endswith(FILE_SUFFIX) for name in names):
        result = _merged(names, kinds)
        check_labels(prices, [*(run.subject.label for run in result.runs), *DEVICES])
        _show(with_prices(result, prices), options, report)
        return
    if len(names) > 1:
        raise UsageError(f"One model at a time, not {' '.join(names)}.", "Compare their result files: A.json B.json.")
    spec = _spec(names[0], kinds, options)
    check_labels(prices, [*labels(spec), *DEVICES])
    with ending_early() as stop:
        cases = _cases(spec, limited, wanted, data, options)
        result = _measured(spec, cases, options.rounds, report, stop)
        _show(with_prices(result, prices), options, report)
        if stop.is_set():
            raise KeyboardInterrupt


def _merged(names: Sequence[str], kinds: KindOptions) -> Result:
    from hfx.perf.compare.comparison import merge, read_results

    if not all(name.endswith(FILE_SUFFIX) for name in names) or given(kinds):
        raise UsageError("Result files are compared with result files.", "Give A.json B.json and no model.")
    return merge(read_results([Path(name) for name in names]), command_line())


def _spec(name: str, kinds: KindOptions, options: CompareOptions) -> CompareSpec:
    from hfx.perf.compare.candidates import CompareSpec
    from hfx.perf.compare.kinds import KINDS

    chosen: Mapping[str, str | list[str]] = given(kinds)  # a repeatable option has a list
    if len(chosen) != 1:
        named = " and ".join(f"--{kind}" for kind in chosen)
        raise UsageError(
            f"{named} exclude each other." if chosen else "What is to be compared?",
            f"Give one of {', '.join(f'--{kind}' for kind in KINDS)}, or result files A.json B.json.",
        )
    kind, value = next(iter(chosen.items()))
    values = (value,) if isinstance(value, str) else tuple(value)
    return CompareSpec(name, kind, values, options.repository, options.device, options.checkpoint, options.max_drop)


def _cases(
    spec: CompareSpec,
    limited: Sequence[tuple[Plan, LoadLimits]],
    wanted: Slo | None,
    data: DataOptions,
    options: CompareOptions,
) -> list[Case]:
    from hfx.perf.compare.candidates import Case
    from hfx.perf.compare.kinds import metadata
    from hfx.perf.measuring import MeasureSpec

    requests = loads.requests(data, metadata(spec))
    return [Case(plan, MeasureSpec(requests, limits, wanted, stream=options.stream)) for plan, limits in limited]


def _measured(spec: CompareSpec, cases: Sequence[Case], rounds: int, report: Reporter, stop: threading.Event) -> Result:
    """Return the result of the rounds that were measured before the end or Ctrl-C."""
    from hfx.perf.compare.candidates import Session
    from hfx.perf.compare.comparison import compare, result_of
    from hfx.perf.compare.kinds import candidates_of

    notes: list[str] = []
    with live(report) as show:
        session = Session(show, report.note, stop)
        with candidates_of(spec, session, notes) as candidates:
            runs = list(compare(candidates, cases, rounds, notes, session))
    if stop.is_set():
        notes.insert(0, "Interrupted: the figures cover the requests until then.")
    return result_of(spec.title, command_line(), runs, notes, candidates)


def _show(result: Result, options: CompareOptions, report: Reporter) -> None:
    from hfx.perf.report import tables
    from hfx.perf.report.answer import answer

    lines = [answer(result).sentence]
    warnings = tables.warnings(replace(result, notes=()))  # the notes are printed below the tables
    lines += [f"Warning: {each}" for each in warnings]
    others = (tables.server_table(result), tables.best_table(result), tables.machines_table(result))
    finish(result, options.output, report, lines, (*tables.comparison_tables(result), *others))
