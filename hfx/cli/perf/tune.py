"""`hfx tune`: search the settings of a published model on a real server, prove the gain, and write the settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

from hfx.cli.commands import grouped
from hfx.cli.connection import PublishedName
from hfx.cli.interrupts import deferred, ending_early
from hfx.cli.output import reporter
from hfx.cli.perf import loads
from hfx.cli.perf.loads import DataOptions, LoadOptions, SloOptions
from hfx.cli.perf.printing import command_line, finish
from hfx.cli.serve_options import Device
from hfx.errors import LoadFailed, UsageError
from hfx.options import option

if TYPE_CHECKING:
    from hfx.perf.load import LoadLimits, Plan, Slo
    from hfx.perf.tuning.tune import Findings, TuneSpec

DEFAULT_CONCURRENCY = "8"


@dataclass(frozen=True)
class TuneOptions:
    """The options for the settings to try, the cost of the search, and the use of its result."""

    PANEL: ClassVar[str] = "Search and output"

    repository: loads.Repository = Path("model_repository")
    device: Device = option("cpu", "Device to tune for.")
    budget: str = option("10m", "Total time, including the proof.", metavar="TIME")
    trials: int | None = option(None, "Largest number of trials.", min=2)
    settings: str = option("", "Settings to search. Default: all that the model has.", metavar="A,B")
    rounds: int = option(5, "Rounds of the proof, which compares the old settings with the new ones.", min=3, max=100)
    stream: loads.Stream = None
    timeout: loads.Timeout = "60s"
    apply: bool = option(False, "Apply proven settings to the published model.")
    output: loads.Output = None


@grouped
def command(
    context: typer.Context,
    name: PublishedName,
    load: LoadOptions,
    data: DataOptions,
    slo: SloOptions,
    options: TuneOptions,
) -> None:
    """Search for faster settings of a published model on a real Triton, and prove the gain over the current ones.

    Each trial serves a changed copy of the model. Only --apply changes the published model. The settings with the
    highest throughput within --slo win.

    Examples:
      hfx tune sentiment --slo 'latency<50ms' --concurrency 16 --budget 10m
      hfx tune sentiment --slo 'latency<50ms' --apply
    """
    from hfx.perf.load import LoadLimits, parse_seconds

    report = reporter(context)
    loads.check_output(options.output)
    plans, wanted = _plans(load, data.seed), loads.slo(slo)
    limits = LoadLimits(seconds=1.0, timeout=parse_seconds(options.timeout, "--timeout"))
    budget = parse_seconds(options.budget, "--budget", unit="")
    with deferred():
        from hfx.perf.compare.candidates import Session
        from hfx.perf.machine import machine
        from hfx.perf.report.tables import comparison_tables, proof, trials_table, warnings
        from hfx.perf.tuning.tune import Findings, result, tune

    spec, findings, failure = _spec(name, plans, limits, wanted, budget, data, options), Findings(), None
    try:
        with report.progress(f"Tuning {name}") as say, ending_early() as stop:
            tune(spec, findings, Session(stop=stop, say=say))
    except (LoadFailed, KeyboardInterrupt) as error:
        if not findings.trials:
            raise
        failure = error
        findings.notes.append(error.message if isinstance(error, LoadFailed) else "Interrupted before the proof.")
    tuned = result(spec, findings, machine())
    final = replace(proof(tuned), notes=())
    tables = (trials_table(tuned), *(comparison_tables(final) if final.runs else []))
    head = [f"Warning: {each}" for each in warnings(tuned)]
    finish(tuned, options.output, report, head, tables, _verdict(name, findings, options.apply))
    if failure is not None:
        raise failure


def _plans(load: LoadOptions, seed: int) -> tuple[Plan, ...]:
    from hfx.perf.load import Open

    if (load.concurrency, load.rate, load.arrivals, load.trace) == (None, None, None, None):
        load = replace(load, concurrency=DEFAULT_CONCURRENCY)
    plans = loads.plans(load, seed)
    if any(isinstance(plan, Open) and plan.rate is None for plan in plans):
        raise UsageError("Settings are compared under a steady load.", "Give --concurrency, or --rate.")
    return plans


def _spec(
    name: str,
    plans: tuple[Plan, ...],
    limits: LoadLimits,
    wanted: Slo | None,
    budget: float,
    data: DataOptions,
    options: TuneOptions,
) -> TuneSpec:
    from hfx.local.models import published_metadata
    from hfx.perf.measuring import MeasureSpec
    from hfx.perf.tuning.tune import TuneSpec
    from hfx.repository import recover

    recover(options.repository)
    requests = loads.requests(data, published_metadata(options.repository, name))
    return TuneSpec(
        repository=options.repository,
        name=name,
        device=options.device,
        plans=plans,
        measure=MeasureSpec(requests, limits, wanted, stream=options.stream),
        budget=budget,
        only=tuple(part.strip() for part in options.settings.split(",") if part.strip()),
        rounds=options.rounds,
        max_trials=options.trials or math.inf,
        apply=options.apply,
        command=command_line(),
    )


def _verdict(name: str, findings: Findings, apply: bool) -> list[str]:
    """Return the result of the search, and what to do with it, as lines."""
    from hfx.perf.settings import settings_line

    count, top = len(findings.trials), findings.best
    lines = [f"Top of {count} trials: {top.label}, {settings_line(top.settings)}."] if top and count > 1 else []
    lines += [findings.verdict] if findings.verdict else []
    if findings.applied:
        instead = "" if findings.applied == name else f", and ask it instead of {name}"
        lines.append(f"Written into {findings.applied}: serve it again{instead}.")
    elif findings.proof and findings.proof.proven and not apply:
        lines.append("Nothing was changed: with --apply the settings are written into the model.")
    return lines
