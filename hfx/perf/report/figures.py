"""What can be shown of a run: one table of figures by name, each with its title, its unit and which way is better."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from hfx.perf.report.numbers import Unit
from hfx.perf.results import Distribution, Gpu, Run, Step
from hfx.perf.results.schema import ServerSide


@dataclass(frozen=True)
class Figure:
    """A figure of a run: `of` gives it, or None where it was not measured. `title` heads its column."""

    name: str
    title: str
    unit: Unit
    better: Literal["more", "less"]
    of: Callable[[Run], float | None]


def error_share(run: Run) -> float | None:
    """The share of requests that did not succeed."""
    return run.requests.failed / run.requests.sent if run.requests.sent else None


def _time(kind: str, part: str) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        times: Distribution | None = getattr(run, kind)
        return None if times is None else float(getattr(times, part))

    return of


def _times(kind: str, title: str, parts: str) -> list[Figure]:
    prefix = f"{kind} " if kind != "latency" else ""
    return [Figure(prefix + part, f"{title}{part}", "ms", "less", _time(kind, part)) for part in parts.split()]


def _server(part: Callable[[ServerSide], float | None]) -> Callable[[Run], float | None]:
    return lambda run: part(run.server) if run.server else None


def _gpu(part: Callable[[Gpu], float | None]) -> Callable[[Run], float | None]:
    """Of the busiest GPU: a model runs on one of them, or on all alike."""
    return _server(lambda side: max((value for gpu in side.gpus if (value := part(gpu)) is not None), default=None))


def _batch(side: ServerSide) -> float | None:
    """Rows of an execution of the model that computes longest."""
    step: Step | None = max(side.steps, key=lambda step: step.infer, default=None)
    return step.batch if step and step.executions else None


def _a_core(value: Callable[[Run], float | None]) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        total, cores = value(run), run.server.cores if run.server else None
        return total / cores if total is not None and cores else None

    return of


_ALL = (
    Figure("throughput", "requests/s", "/s", "more", lambda run: run.throughput),
    Figure("tokens", "tokens/s", "tokens/s", "more", lambda run: run.tokens_per_second),
    *_times("latency", "", "p50 p90 p95 p99 mean min max"),
    *_times("ttft", "first token ", "p50 p90 p99 mean"),
    *_times("tpot", "a token ", "p50 p90 p99 mean"),
    *_times("gaps", "pause ", "p50 p99 max"),
    Figure("goodput", "goodput", "share", "more", lambda run: run.goodput),
    Figure("errors", "errors", "share", "less", error_share),
    Figure("batch", "batch", "rows", "more", _server(_batch)),
    Figure("cores", "server cores", "cores", "less", _server(lambda side: side.cores)),
    Figure("memory", "server memory", "bytes", "less", _server(lambda side: side.memory)),
    Figure("gpu busy", "GPU busy", "share", "less", _gpu(lambda gpu: gpu.busy)),
    Figure("gpu memory", "GPU memory", "bytes", "less", _gpu(lambda gpu: gpu.memory)),
    Figure("throughput a core", "requests/s a core", "/s", "more", _a_core(lambda run: run.throughput)),
    Figure("tokens a core", "tokens/s a core", "tokens/s", "more", _a_core(lambda run: run.tokens_per_second)),
    Figure("cost 1k", "per 1k requests", "money", "less", lambda run: run.cost.per_1k_requests if run.cost else None),
    Figure("cost 1m", "per 1M tokens", "money", "less", lambda run: run.cost.per_1m_tokens if run.cost else None),
)
FIGURES: dict[str, Figure] = {figure.name: figure for figure in _ALL}

LATENCY = ("p50", "p90", "p95", "p99", "max")
GENERATION = ("tokens", "ttft p50", "ttft p99", "tpot p50", "tpot p99")
RUN = ("throughput", *LATENCY, *GENERATION, "goodput", "errors")
SERVER = ("batch", "cores", "throughput a core", "tokens a core", "memory", "gpu busy", "gpu memory")
COMPARED = {  # a comparison in tables that fit a terminal
    "Throughput": ("throughput", "tokens", "goodput"),
    "Latency": ("p50", "p99"),
    "Tokens": ("ttft p50", "tpot p50"),
}


def main(runs: Iterable[Run]) -> Figure:
    """What variants are compared by: tokens a second where all runs wrote texts, requests a second else."""
    answered = [run for run in runs if run.requests.succeeded]
    return FIGURES["tokens" if answered and all(run.tokens_per_second for run in answered) else "throughput"]


def present(names: Iterable[str], runs: Iterable[Run]) -> list[Figure]:
    """The figures of `names` that at least one run has; shares of errors only where there were some."""
    runs = list(runs)
    return [figure for figure in map(FIGURES.__getitem__, names) if any(_shows(figure, run) for run in runs)]


def _shows(figure: Figure, run: Run) -> bool:
    value = figure.of(run)
    return value is not None and (figure.name != "errors" or value > 0)
