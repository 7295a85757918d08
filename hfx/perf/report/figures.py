"""The figures of a run (FIGURES, by name), and formatting of numbers.

Numbers have three significant digits and a suitable unit. Times below the clock's resolution are shown as a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from hfx.perf.results import Distribution, Gpu, Run, ServerSide
from hfx.perf.rounds import Spread

Unit = Literal["number", "ms", "share", "bytes", "ratio"]

NOTHING = "–"  # the text of a value that was not measured
STEPS, CAPTURED = "hfx_steps_total", "hfx_captured_steps_total"  # counters of a generator
RESOLUTION_MS = 0.01  # resolution of the load generator's clock
BARS = "▁▂▃▄▅▆▇█"


def number(value: float | None) -> str:
    """Format `value` with three significant digits, without an exponent: 0.0123, 1.23, 12.3, 1,230."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    rounded = round(value, 2 - magnitude)
    if rounded and math.floor(math.log10(abs(rounded))) > magnitude:  # 9.996 becomes 10.0
        magnitude += 1
    return f"{rounded:,.{max(0, min(2 - magnitude, 12))}f}"


def milliseconds(value: float | None) -> str:
    """Format a time in milliseconds with at most two decimals, or as a bound if it is below the clock's resolution."""
    if value is not None and 0 < value < RESOLUTION_MS:
        return f"< {RESOLUTION_MS:g}"
    return number(value) if value is None or value >= 1 else f"{value:.2f}"


def percent(value: float | None) -> str:
    """Format a share as a percentage. "100 %" and "0 %" are used only for exact values."""
    if value is None:
        return NOTHING
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    if 0 < value < 0.0001:
        return "< 0.01 %"
    return f"{number(100 * value)} %"


def size(value: float | None) -> str:
    """Format bytes in the largest binary unit that gives a number of at least 1."""
    if value is None:
        return NOTHING
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << exponent:
            return f"{number(value / (1 << exponent))} {unit}"
    return f"{value:.0f} B"


def ratio(value: float | None) -> str:
    """Format a ratio, such as 2.13×."""
    return NOTHING if value is None else f"{number(value)}×"


def spread(figure: Spread | None, unit: Unit) -> str:
    """Format the median, followed by the range over rounds. The unit appears only once."""
    if figure is None:
        return NOTHING
    median, least, most = (FORMATS[unit](value) for value in (figure.median, figure.least, figure.most))
    if least == median == most:
        return median
    suffix = median.lstrip("0123456789.,<> ")
    short = least.removesuffix(suffix).strip() if most.endswith(suffix) else least
    return f"{median} ({short}–{most.removesuffix(suffix).strip()})"


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """Draw the last `width` of `values` as bars from 0 to their maximum. None is a gap."""
    last = values[-width:]
    most = max((value for value in last if value is not None), default=0.0) or 1.0
    return "".join(" " if value is None else BARS[round(value / most * (len(BARS) - 1))] for value in last)


FORMATS: dict[Unit, Callable[[float | None], str]] = {
    "number": number, "ms": milliseconds, "share": percent, "bytes": size, "ratio": ratio,
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A figure. `of` returns the figure's value for a run, or None if it was not measured."""

    name: str
    title: str
    of: Callable[[Run], float | None]
    unit: Unit = "number"

    @property
    def heading(self) -> str:
        """The heading of a column: the title, with "ms" for times."""
        return f"{self.title} ms" if self.unit == "ms" else self.title


def error_share(run: Run) -> float | None:
    """Return the share of requests that failed."""
    return run.requests.failed / run.requests.sent if run.requests.sent else None


def _times(kind: str, prefix: str, parts: str, title: str = "") -> list[Figure]:
    """Return percentiles of the distribution `kind` of a run, as figures named by `prefix` and the percentile."""
    return [Figure(prefix + part, f"{title}{part}", partial(_time, kind, part), "ms") for part in parts.split()]


def _time(kind: str, part: str, run: Run) -> float | None:
    times: Distribution | None = getattr(run, kind)
    return None if times is None else float(getattr(times, part))


def _server(part: Callable[[ServerSide], float | None]) -> Callable[[Run], float | None]:
    return lambda run: part(run.server) if run.server else None


def _gpu(part: Callable[[Gpu], float | None]) -> Callable[[Run], float | None]:
    """Return a function for the maximum over GPUs, because a model runs on one GPU, or on all GPUs alike."""
    return _server(lambda side: max((value for gpu in side.gpus if (value := part(gpu)) is not None), default=None))


def _batch(side: ServerSide) -> float | None:
    """Return the mean batch size of the model that computes longest."""
    step = max(side.steps, key=lambda step: step.infer, default=None)
    return step.batch if step and step.executions else None


def _captured(run: Run) -> float | None:
    """Return the share of decode steps on a GPU that replayed a captured graph."""
    counters = run.server.counters if run.server and run.subject.device == "gpu" else {}
    return counters.get(CAPTURED, 0.0) / counters[STEPS] if counters.get(STEPS) else None


def _a_core(run: Run, value: float | None) -> float | None:
    return value / run.server.cores if value is not None and run.server and run.server.cores else None


_ALL = (
    Figure("throughput", "requests/s", lambda run: run.throughput),
    Figure("tokens", "tokens/s", lambda run: run.tokens_per_second),
    *_times("latency", "", "p50 p90 p95 p99 max"),
    *_times("ttft", "ttft ", "p50 p99", "first token "),
    *_times("tpot", "tpot ", "p50 p99", "per token "),
    Figure("goodput", "goodput", lambda run: run.goodput, "share"),
    Figure("errors", "errors", error_share, "share"),
    Figure("batch", "batch", _server(_batch)),
    Figure("cores", "server cores", _server(lambda side: side.cores)),
    Figure("memory", "server memory", _server(lambda side: side.memory), "bytes"),
    Figure("gpu busy", "GPU busy", _gpu(lambda gpu: gpu.busy), "share"),
    Figure("gpu memory", "GPU memory", _gpu(lambda gpu: gpu.memory), "bytes"),
    Figure("captured", "steps captured", _captured, "share"),
    Figure("throughput a core", "requests/s per core", lambda run: _a_core(run, run.throughput)),
    Figure("tokens a core", "tokens/s per core", lambda run: _a_core(run, run.tokens_per_second)),
    Figure("cost 1m requests", "per 1M requests", lambda run: 1e3 * run.cost.per_1k_requests if run.cost else None),
    Figure("cost 1m tokens", "per 1M tokens", lambda run: run.cost.per_1m_tokens if run.cost else None),
)
FIGURES: dict[str, Figure] = {figure.name: figure for figure in _ALL}

LATENCY = ("p50", "p90", "p95", "p99", "max")
GENERATION = ("tokens", "ttft p50", "ttft p99", "tpot p50", "tpot p99")
RUN = ("throughput", *LATENCY, *GENERATION, "goodput", "errors")
SERVER = ("batch", "cores", "throughput a core", "tokens a core", "memory", "gpu busy", "gpu memory", "captured")
COMPARED = {  # the figures of a comparison, in tables that fit into a terminal
    "Throughput": ("throughput", "tokens", "goodput"),
    "Latency": ("p50", "p99"),
    "Tokens": ("ttft p50", "tpot p50"),
}


def main(runs: Iterable[Run]) -> Figure:
    """Return the figure by which variants are compared: tokens/s if all runs generated texts, else requests/s."""
    answered = [run for run in runs if run.requests.succeeded]
    return FIGURES["tokens" if answered and all(run.tokens_per_second for run in answered) else "throughput"]


def present(names: Iterable[str], runs: Iterable[Run]) -> list[Figure]:
    """Return those figures of `names` that at least one run has; "errors" only if there were errors."""
    runs = list(runs)
    shown = {name: [value for run in runs if (value := FIGURES[name].of(run)) is not None] for name in names}
    return [FIGURES[name] for name, values in shown.items() if (any(values) if name == "errors" else values)]
