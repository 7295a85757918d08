"""`hfx perf run`: measure a served model under one or more loads; `hfx perf tools`: list the load generators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from hfx.cli.commands import grouped
from hfx.cli.connection import PublishedName
from hfx.cli.interrupts import deferred, ending_early
from hfx.cli.output import Reporter, reporter
from hfx.cli.perf import loads
from hfx.cli.perf.loads import DataOptions, LimitOptions, LoadOptions, ServerOptions, SloOptions
from hfx.cli.perf.printing import command_line, finish, live
from hfx.errors import LoadFailed, ServerError
from hfx.manifest import created_now
from hfx.options import option

if TYPE_CHECKING:
    from hfx.perf.load import Plan
    from hfx.perf.measuring import MeasureSpec, Target
    from hfx.perf.report.tables import Table
    from hfx.perf.results import Machine, Result, Run


@dataclass(frozen=True)
class MeasureOptions:
    """The options for the measurement and its result."""

    PANEL: ClassVar[str] = "Measurement and output"

    tool: Literal["builtin", "perf_analyzer", "locust"] = option("builtin", "Load generator.")
    stream: loads.Stream = None
    label: str = option("", "Name of the run in tables. Default: the model's name.", metavar="NAME")
    repository: Path | None = option(None, "Model repository, to record the model's precision.", metavar="DIR")
    max_error_rate: float | None = option(
        None,
        "Largest share of failed requests that passes. Above it, the exit code is 5.",
        min=0,
        max=1,
        metavar="SHARE",
    )
    output: loads.Output = None


@grouped
def command(
    context: typer.Context,
    name: PublishedName,
    server: ServerOptions,
    load: LoadOptions,
    limit: LimitOptions,
    data: DataOptions,
    slo: SloOptions,
    options: MeasureOptions,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="Further flags for perf_analyzer or locust.")
    ] = None,
) -> None:
    """Measure a served model under load: throughput, latency and server metrics.

    Ctrl-C stops early and keeps the figures so far.

    Examples:
      hfx perf run sentiment --concurrency 1:64:2x --output load.json
      hfx perf run stories --rate 5 --set max_tokens=50 --slo 'ttft<200ms,tpot<50ms'
    """
    report = reporter(context)
    loads.check_output(options.output)
    plans, wanted = loads.plans(load, data.seed), loads.slo(slo)
    limits = [loads.limits(limit, plan) for plan in plans]
    with deferred():
        from hfx.perf import measuring
        from hfx.perf.machine import machine

    target = _target(server, name, options)
    requests = loads.requests(data, measuring.metadata(target))
    here = machine()  # before the load, because it must not count the load's own work
    flags = tuple(arguments or ())
    specs = [measuring.MeasureSpec(requests, each, wanted, options.tool, options.stream, flags) for each in limits]
    outcome = _measured(target, list(zip(plans, specs, strict=True)), options, report)
    result = _result(name, here, outcome)
    _print(result, options.output, report)
    _judge(outcome, options.max_error_rate)


@dataclass(frozen=True)
class Outcome:
    """The runs, and the server's error or the Ctrl-C that ended them early; `left` is the number of loads not run."""

    runs: tuple[Run, ...]
    failure: ServerError | None = None
    interrupted: bool = False
    left: int = 0


def _target(server: ServerOptions, name: str, options: MeasureOptions) -> Target:
    from hfx.perf.measuring import device_of
    from hfx.repository.catalog import model

    target = loads.target(server, name)
    if options.repository is None:
        return target
    manifest = model(options.repository, name)
    device = device_of(target)
    precision = manifest.precision.gpu if device == "gpu" else manifest.precision.cpu
    return replace(target, device=device, precision=precision or "", task=str(manifest.task))


def _measured(
    target: Target, work: list[tuple[Plan, MeasureSpec]], options: MeasureOptions, report: Reporter
) -> Outcome:
    """Measure one load after the other; raise an error only if it occurs before the first figures."""
    from hfx.perf.measuring import measure

    runs: list[Run] = []
    failure: ServerError | None = None
    with ending_early() as stop, live(report) as show:
        try:
            for plan, spec in work:
                title = f"{target.model}, {plan.load(spec.requests.description, spec.limits.description).label}"
                run = measure(target, plan, spec, label=options.label, watch=show(title), stop=stop)
                if run.requests.sent or not runs:  # Ctrl-C may come between two loads
                    runs.append(run)
                if stop.is_set():
                    break
                if run.interrupted:
                    raise _gone(run)
        except ServerError as error:
            if not runs and not stop.is_set():
                raise
            failure = error
    if stop.is_set() and not runs:
        raise KeyboardInterrupt
    return Outcome(tuple(runs), failure, stop.is_set(), len(work) - len(runs))


def _gone(run: Run) -> ServerError:
    """Return the error of a load that ended early by itself."""
    reason = next((note for note in run.notes if "early" in note), "The load was ended early.")
    return LoadFailed(reason, "See the server's log; the result has what was measured until then.")


def _result(name: str, here: Machine, outcome: Outcome) -> Result:
    from hfx.perf.results import Result

    notes = []
    if outcome.left:
        why = outcome.failure.message if outcome.failure else "interrupted."
        notes.append(f"{outcome.left} further load{'s were' if outcome.left > 1 else ' was'} not run: {why}")
    return Result(
        kind="run",
        title=f"{name} under load",
        command=command_line(),
        created=created_now(),
        machine=here,
        runs=outcome.runs,
        notes=tuple(notes),
    )


def _tables(result: Result) -> Iterator[Table]:
    """Yield tables of the callers' figures, the tokens' times and the server's work, narrow enough for a terminal."""
    from hfx.perf.report.figures import GENERATION, LATENCY, present
    from hfx.perf.report.tables import run_table, server_table, steps_table

    yield run_table(result, ("throughput", *LATENCY, "goodput", "errors"))
    if present(GENERATION, result.runs):
        yield replace(run_table(result, GENERATION), title="Tokens")
    yield from (server_table(result), steps_table(result))


def _print(result: Result, output: Path | None, report: Reporter) -> None:
    from hfx.perf.report.answer import answer
    from hfx.perf.report.tables import warnings

    notes = (*result.notes, *(note for run in result.runs for note in run.notes))
    top = [
        f"{'Note' if any(note in message for note in notes) else 'Warning'}: {message}" for message in warnings(result)
    ]
    end = [answer(result).sentence, *([] if output else ["For a report: --output load.json"])]
    finish(result, output, report, top, _tables(result), end)


def _judge(outcome: Outcome, allowed: float | None) -> None:
    """Raise the error that decides the exit code: Ctrl-C, an error that ended the runs, more errors than allowed."""
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.failure:
        raise outcome.failure
    for run in outcome.runs:
        rate = run.requests.failed / max(1, run.requests.sent)
        if allowed is not None and rate > allowed:
            raise LoadFailed(
                f"{run.requests.failed} of {run.requests.sent} requests failed ({100 * rate:.2g} %), with"
                f" {run.load.label}: more than --max-error-rate {allowed:g}.",
                "The result names the errors.",
            )


def tools(
    context: typer.Context,
    tool: Annotated[
        Literal["perf_analyzer"] | None, typer.Argument(metavar="[perf_analyzer]", help="Tool to fetch.")
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
