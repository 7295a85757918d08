"""What can be shown of a run: one table of figures by name, each with its title, unit and which way is better.

It must not know how a figure is printed or drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hfx.perf.results.schema import Distribution, Gpu, Run, ServerSide, Step

Better = Literal["more", "less"]
Unit = Literal["/s", "tokens/s", "ms", "share", "bytes", "cores", "rows", "money"]


@dataclass(frozen=True)
class Figure:
    """A figure of a run: `of` gives it, or None where it was not measured. `title` heads its column."""

    name: str
    title: str
    unit: Unit
    better: Better
    of: Callable[[Run], float | None]


def heaviest(run: Run) -> Step | None:
    """The model of the server in which a request is computed longest."""
    steps = run.server.steps if run.server else ()
    return max(steps, key=lambda step: step.infer, default=None)


def error_share(run: Run) -> float | None:
    """The share of requests that did not succeed."""
    return run.requests.failed / run.requests.sent if run.requests.sent else None


def _time(kind: str, part: str) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        found: Distribution | None = getattr(run, kind)
        return None if found is None else float(getattr(found, part))

    return of


def _server(part: Callable[[ServerSide], float | None]) -> Callable[[Run], float | None]:
    return lambda run: None if run.server is None else part(run.server)


def _gpu(part: Callable[[Gpu], float | None]) -> Callable[[Run], float | None]:
    """The busiest GPU's: a model runs on one of them or on all alike."""

    def of(run: Run) -> float | None:
        found = [value for gpu in (run.server.gpus if run.server else ()) if (value := part(gpu)) is not None]
        return max(found, default=None)

    return of


def _batch(run: Run) -> float | None:
    step = heaviest(run)
    return step.batch if step and step.executions else None


def _over_cores(value: Callable[[Run], float | None]) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        found, cores = value(run), run.server.cores if run.server else None
        return found / cores if found is not None and cores else None

    return of


def _times(kind: str, words: str, parts: str) -> list[Figure]:
    prefix = f"{kind} " if kind != "latency" else ""
    return [Figure(prefix + part, f"{words}{part}", "ms", "less", _time(kind, part)) for part in parts.split()]


_ALL = (
    Figure("throughput", "requests/s", "/s", "more", lambda run: run.throughput),
    Figure("tokens", "tokens/s", "tokens/s", "more", lambda run: run.tokens_per_second),
    *_times("latency", "", "p50 p90 p95 p99 mean min max"),
    *_times("ttft", "first token ", "p50 p90 p99 mean"),
    *_times("tpot", "a token ", "p50 p90 p99 mean"),
    *_times("gaps", "pause ", "p50 p99 max"),
    Figure("goodput", "goodput", "share", "more", lambda run: run.goodput),
    Figure("errors", "errors", "share", "less", error_share),
    Figure("batch", "batch", "rows", "more", _batch),
    Figure("cores", "server cores", "cores", "less", _server(lambda side: side.cores)),
    Figure("memory", "server memory", "bytes", "less", _server(lambda side: side.memory)),
    Figure("gpu busy", "GPU busy", "share", "less", _gpu(lambda gpu: gpu.busy)),
    Figure("gpu memory", "GPU memory", "bytes", "less", _gpu(lambda gpu: gpu.memory)),
    Figure("throughput a core", "requests/s a core", "/s", "more", _over_cores(lambda run: run.throughput)),
    Figure("tokens a core", "tokens/s a core", "tokens/s", "more", _over_cores(lambda run: run.tokens_per_second)),
    Figure("cost 1k", "per 1k requests", "money", "less", lambda run: run.cost.per_1k_requests if run.cost else None),
    Figure("cost 1m", "per 1M tokens", "money", "less", lambda run: run.cost.per_1m_tokens if run.cost else None),
    Figure("roofline", "of the limit", "share", "more", lambda run: run.roofline.share if run.roofline else None),
    Figure("client cores", "client cores", "cores", "less", lambda run: run.client.cores if run.client else None),
)
FIGURES: dict[str, Figure] = {figure.name: figure for figure in _ALL}

LATENCY = ("p50", "p90", "p95", "p99", "max")
GENERATION = ("tokens", "ttft p50", "ttft p99", "tpot p50", "tpot p99")
RUN = ("throughput", *LATENCY, *GENERATION, "goodput", "errors")
SERVER = ("batch", "cores", "memory", "gpu busy", "gpu memory", "roofline")
PARTS = {  # a comparison in tables that fit a terminal
    "Throughput": ("throughput", "tokens", "goodput"),
    "Latency": ("p50", "p99"),
    "Tokens": ("ttft p50", "tpot p50"),
    "Server": ("batch", "cores", "throughput a core", "tokens a core", "memory", "gpu busy", "gpu memory"),
}
COMPARED = tuple(name for names in PARTS.values() for name in names)


def main(runs: tuple[Run, ...]) -> Figure:
    """What ways are compared by first: tokens a second where all of RUNS wrote texts, requests a second else."""
    answered = [run for run in runs if run.requests.succeeded]
    return FIGURES["tokens" if answered and all(run.tokens_per_second for run in answered) else "throughput"]


def present(names: tuple[str, ...], runs: tuple[Run, ...]) -> list[Figure]:
    """The figures of NAMES that at least one run has; shares of errors only where there were some."""
    found = [FIGURES[name] for name in names]
    return [each for each in found if any(_shows(each, run) for run in runs)]


def _shows(figure: Figure, run: Run) -> bool:
    value = figure.of(run)
    return value is not None and (figure.name != "errors" or value > 0)
