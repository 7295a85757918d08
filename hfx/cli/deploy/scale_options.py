"""How many pods and how large: the options, and the measured loads that they point to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from hfx.errors import UsageError

if TYPE_CHECKING:
    from hfx.deploy.deployment import Deployment
    from hfx.deploy.sizing import Measured, Sizing
    from hfx.perf.results import Result, Run

LEAST_KEPT = 0.99  # share of its requests that a load must have answered, within its SLO where it has one


@dataclass(frozen=True)
class ScaleOptions:
    """Pods, and what they are sized by."""

    load: Annotated[
        list[Path] | None, Option("--from", help="Result files of `hfx perf run`: sizes and thresholds as measured.")
    ] = None
    replicas: Annotated[int, Option(help="Pods, at least.")] = 2
    max_replicas: Annotated[int | None, Option(help="Pods at most; four times as many without it.")] = None
    rate: Annotated[float | None, Option(help="Requests a second that all pods must answer; with --from.")] = None
    wait: Annotated[float, Option(help="Seconds that requests may wait before a pod is added; with --from.")] = 0.5
    pre_stop: Annotated[int, Option(help="Seconds between a pod's end and SIGTERM, while it still serves.")] = 10

    def sizing(self, deployment: Deployment) -> Sizing:
        """The sizing of `deployment`. Raises UsageError, also for results that have none of its models."""
        from hfx.deploy.sizing import Scale, size

        scale = Scale(self.replicas, self.max_replicas, self.rate, self.wait, self.pre_stop)
        return size(deployment, scale, measured(self.load or (), deployment))


def measured(paths: Iterable[Path], deployment: Deployment) -> dict[str, Measured]:
    """Of each deployed model the highest throughput of a load that it kept up with, from result files."""
    from hfx.perf.results import read_result

    best: dict[str, Measured] = {}
    for path in paths:
        found = _best(path, read_result(path), deployment)
        if not found:
            raise UsageError(
                f"{path} has no load of {', '.join(deployment.names)} on {deployment.device} that was answered to"
                f" {100 * LEAST_KEPT:g} %.",
                "Give a result of `hfx perf run NAME --output F.json` for a deployed model, with fewer callers.",
            )
        for one in found:
            if one.model not in best or one.requests_per_second > best[one.model].requests_per_second:
                best[one.model] = one
    return best


def _best(path: Path, result: Result, deployment: Deployment) -> list[Measured]:
    """The best load of each deployed model in one file."""
    runs = [run for run in result.runs if _counts(run, deployment)]
    models = dict.fromkeys(run.subject.model for run in runs)
    tops = [max((run for run in runs if run.subject.model == name), key=lambda run: run.throughput) for name in models]
    return [_measured(path, result, run) for run in tops]


def _counts(run: Run, deployment: Deployment) -> bool:
    is_deployed = run.subject.model in deployment.names and run.subject.device in ("", deployment.device)
    return is_deployed and not run.interrupted and run.throughput > 0 and run.kept >= LEAST_KEPT


def _measured(path: Path, result: Result, run: Run) -> Measured:
    from hfx.deploy.sizing import Measured

    cores, memory = (run.server.cores, run.server.memory) if run.server else (None, None)
    source = f"{path.name}: {run.load.label} on {result.machine.processor}, {result.created[:10]}"
    return Measured(run.subject.model, run.throughput, cores, memory, source)
