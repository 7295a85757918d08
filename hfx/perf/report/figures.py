"""What can be shown of a run: one table of figures by name, each with its title and its unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from hfx.perf.report.numbers import Unit
from hfx.perf.results import Distribution, Gpu, Run
from hfx.perf.results.schema import ServerSide


@dataclass(frozen=True)
class Figure:
    """A figure of a run: `of` gives it, or None where it was not measured."""

    name: str
    title: str
    of: Callable[[Run], float | None]
    unit: Unit = "number"

    @property
    def heading(self) -> str:
        """A column's head: the title, with the unit where it does not say so itself."""
        return f"{self.title} ms" if self.unit == "ms" else self.title


def error_share(run: Run) -> float | None:
    """The share of requests that did not succeed."""
    return run.requests.failed / run.requests.sent if run.requests.sent else None


def _times(kind: str, prefix: str, parts: str, title: str = "") -> list[Figure]:
    """Percentiles of the distribution `kind` of a run, as figures named by `prefix` and the percentile."""
    return [Figure(prefix + part, f"{title}{part}", partial(_time, kind, part), "ms") for part in parts.split()]


def _time(kind: str, part: str, run: Run) -> float | None:
    times: Distribution | None = getattr(run, kind)
    return None if times is None else float(getattr(times, part))


def _server(part: Callable[[ServerSide], float | None]) -> Callable[[Run], float | None]:
    return lambda run: part(run.server) if run.server else None


def _gpu(part: Callable[[Gpu], float | None]) -> Callable[[Run], float | None]:
    """Of the busiest GPU: a model runs on one of them, or on all alike."""
    return _server(lambda side: max((value for gpu in side.gpus if (value := part(gpu)) is not None), default=None))


def _batch(side: ServerSide) -> float | None:
    """Rows of an execution of the model that computes longest."""
    step = max(side.steps, key=lambda step: step.infer, default=None)
    return step.batch if step and step.executions else None


def _a_core(run: Run, value: float | None) -> float | None:
    return value / run.server.cores if value is not None and run.server and run.server.cores else None


_ALL = (
    Figure("throughput", "requests/s", lambda run: run.throughput),
    Figure("tokens", "tokens/s", lambda run: run.tokens_per_second),
    *_times("latency", "", "p50 p90 p95 p99 max"),
    *_times("ttft", "ttft ", "p50 p99", "first token "),
    *_times("tpot", "tpot ", "p50 p99", "a token "),
    Figure("goodput", "goodput", lambda run: run.goodput, "share"),
    Figure("errors", "errors", error_share, "share"),
    Figure("batch", "batch", _server(_batch)),
    Figure("cores", "server cores", _server(lambda side: side.cores)),
    Figure("memory", "server memory", _server(lambda side: side.memory), "bytes"),
    Figure("gpu busy", "GPU busy", _gpu(lambda gpu: gpu.busy), "share"),
    Figure("gpu memory", "GPU memory", _gpu(lambda gpu: gpu.memory), "bytes"),
    Figure("throughput a core", "requests/s a core", lambda run: _a_core(run, run.throughput)),
    Figure("tokens a core", "tokens/s a core", lambda run: _a_core(run, run.tokens_per_second)),
    Figure("cost 1m requests", "per 1M requests", lambda run: 1e3 * run.cost.per_1k_requests if run.cost else None),
    Figure("cost 1m tokens", "per 1M tokens", lambda run: run.cost.per_1m_tokens if run.cost else None),
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
    shown = {name: [value for run in runs if (value := FIGURES[name].of(run)) is not None] for name in names}
    return [FIGURES[name] for name, values in shown.items() if (any(values) if name == "errors" else values)]
