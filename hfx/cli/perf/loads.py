"""The options for server, load and requests of all commands that measure, and the functions that read them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from hfx.errors import UsageError
from hfx.names import LONG, TARGETS, Task
from hfx.options import Option, option

if TYPE_CHECKING:
    from hfx.client import ModelMetadata
    from hfx.perf.load import LoadLimits, Plan, RequestSet, Slo
    from hfx.perf.measuring import Target

DEFAULT_URL = "127.0.0.1:8001"
DEFAULT_DURATION, DEFAULT_WARMUP = "10s", "1s"
DEFAULT_WORDS, DEFAULT_COUNT = "uniform:4-40", 256
Stream = Annotated[
    bool | None, Option("--stream/--no-stream", help="Stream the answers of generators (default), or take whole texts.")
]
Output = Annotated[Path | None, Option(metavar="F.json", help="Write the result file.")]
Repository = Annotated[Path, Option(help="Model repository of the model.", metavar="DIR")]
Timeout = Annotated[str, Option(metavar="TIME", help="Time limit of a request.")]


@dataclass(frozen=True)
class ServerOptions:
    """The options for the addresses of the server."""

    PANEL: ClassVar[str] = "Server"

    url: str = option(DEFAULT_URL, "The server's gRPC port: HOST:PORT, or grpcs://HOST:PORT.", metavar="URL")
    http_url: str = option(
        "",
        "The server's HTTP port, HOST:PORT. Without --metrics-url, metrics are read two ports above it.",
        metavar="URL",
    )
    metrics_url: str = option(
        "", "The server's metrics, HOST:PORT or a URL. Found automatically on this machine.", metavar="URL"
    )


@dataclass(frozen=True)
class LoadOptions:
    """The options of the load: how many requests at a time, or how many a second."""

    PANEL: ClassVar[str] = "Load"

    concurrency: str | None = option(
        None, "Number of concurrent callers: 1,2,4 or 1:64:2x. Default: 1 (hfx tune: 8).", metavar="N,…"
    )
    rate: str | None = option(None, "Requests per second, sent without waiting for answers.", metavar="R,…")
    arrivals: str | None = option(
        None, "Pattern of --rate: constant, poisson, burst, burst:N (N at a time) or trace.", metavar="KIND"
    )
    trace: Path | None = option(None, "Send times in seconds, for --arrivals trace.", metavar="FILE")


@dataclass(frozen=True)
class LimitOptions:
    """The options for the length of a load, and for the part of it that counts."""

    PANEL: ClassVar[str] = "Duration"

    requests: int | None = option(None, "Number of measured requests.", min=1)
    duration: str | None = option(None, f"Measured time (10s, 2m). Default: {DEFAULT_DURATION}.", metavar="TIME")
    warmup: str | None = option(
        None, f"Requests or time before the measurement. Default: {DEFAULT_WARMUP}.", metavar="N|TIME"
    )
    stable: str | None = option(
        None, "Measure until throughput and latency of three windows differ by at most P%.", metavar="P%"
    )
    timeout: Timeout = "60s"


@dataclass(frozen=True)
class DataOptions:
    """The options for the requests to send."""

    PANEL: ClassVar[str] = "Requests"

    data: Path | None = option(None, "Texts from a CSV, JSON-lines, text or Parquet file.", metavar="FILE")
    column: list[str] | None = option(None, "Column of --data, or TENSOR=COLUMN. Repeatable.")
    words: str | None = option(
        None,
        "Random texts with this number of words: fixed:16, uniform:4-40, lognormal:32,0.8. "
        f"Default: {DEFAULT_WORDS}, or fewer if the generator takes fewer.",
        metavar="LENGTHS",
    )
    set: list[str] | None = option(
        None, "A setting for every request, such as max_tokens=50. Repeatable.", metavar="NAME=VALUE"
    )
    seed: int = option(0, "Seed of random texts and poisson arrivals.", min=0)


@dataclass(frozen=True)
class SloOptions:
    """The option for the service level that a request must meet."""

    PANEL: ClassVar[str] = "Targets"

    slo: str | None = option(
        None, "Targets that count towards goodput: 'ttft<200ms,tpot<50ms,latency<2s'.", metavar="TARGETS"
    )


def check_output(path: Path | None, option: str = "--output") -> None:
    """Raise UsageError if no file can be written at `path`. Called before a measurement, to fail early."""
    if path is None:
        return
    is_other = path.exists() and not path.is_file()  # a folder, or a device such as /dev/stdout
    if is_other or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        reason = "it is not a regular file" if is_other else f"{path.parent} is not a folder that you may write to"
        raise UsageError(f"{path} can't be written: {reason}.", f"Give another {option}.")


def target(options: ServerOptions, name: str) -> Target:
    """Return the target: the model `name` on the server."""
    from hfx.perf.measuring import Target

    return Target(name, options.url, _http(options.http_url), _http(options.metrics_url, "/metrics"))


def plans(options: LoadOptions, seed: int = 0) -> tuple[Plan, ...]:
    """Return the loads in their order. Raises UsageError for options that exclude each other or can't be read."""
    from hfx.perf.load import Closed
    from hfx.perf.load.plans import parse_concurrency, parse_open, parse_rates

    is_open = options.rate is not None or options.arrivals is not None or options.trace is not None
    if options.concurrency is not None and is_open:
        raise UsageError(
            "--concurrency is for callers that wait; --rate, --arrivals and --trace for requests that do not.",
            "Choose one of them.",
        )
    if not is_open:
        return tuple(Closed(callers) for callers in parse_concurrency(options.concurrency or "1"))
    arrivals = options.arrivals or ("trace" if options.trace else "constant")
    rates = parse_rates(options.rate) if options.rate is not None else (None,)
    return tuple(parse_open(rate, arrivals, options.trace, seed) for rate in rates)


def limits(options: LimitOptions, plan: Plan | None = None) -> LoadLimits:
    """Return the limits of `plan`; a burst or a trace has no warm-up unless the user gives one."""
    from hfx.perf.load import LoadLimits, Open, parse_seconds
    from hfx.perf.load.plans import parse_warmup

    if options.requests is not None and options.duration is not None:
        raise UsageError("--requests and --duration exclude each other.", "Choose one of them.")
    by_trace = isinstance(plan, Open) and plan.arrivals == "trace"
    at_once = isinstance(plan, Open) and plan.at_once
    ends = options.requests is not None or by_trace or at_once or options.stable is not None
    duration = options.duration or (None if ends else DEFAULT_DURATION)
    requests, seconds = parse_warmup(options.warmup or ("0" if by_trace or at_once else DEFAULT_WARMUP))
    return LoadLimits(
        requests=options.requests,
        seconds=None if duration is None else parse_seconds(duration, "--duration"),
        warmup_requests=requests,
        warmup_seconds=seconds,
        stable=None if options.stable is None else _percent(options.stable),
        timeout=parse_seconds(options.timeout, "--timeout"),
    )


def requests(options: DataOptions, model: ModelMetadata) -> RequestSet:
    """Return the requests for `model`. Raises UsageError for a file, column or setting that can't be used."""
    from hfx.perf.load import from_file, parse_columns, parse_lengths, synthetic, text_tensors
    from hfx.tasks import TASKS

    inputs = tuple(model.input_types)
    settings = _settings(options.set or [], model)
    if options.data is not None:
        if options.words is not None:
            raise UsageError("--words and --data exclude each other.", "Choose one of them.")
        return from_file(options.data, parse_columns(options.column or [], inputs), settings, inputs=inputs)
    if options.column:
        raise UsageError("--column needs --data.", "Add --data FILE, or leave --column out.")
    needed = tuple(name for name in text_tensors(inputs) if name not in settings)
    if options.words is None and LONG in inputs:  # lengths that the user did not choose must not be refused
        settings.setdefault(LONG, "truncate")
    lengths = parse_lengths(options.words or DEFAULT_WORDS)
    opening = f"{TASKS[Task.FILL_MASK].probe} " if TARGETS in inputs else ""
    return synthetic(DEFAULT_COUNT, lengths, options.seed, settings, needed, opening)


def slo(options: SloOptions) -> Slo | None:
    """Return the service level, if there is one."""
    from hfx.perf.load import Slo

    return None if options.slo is None else Slo.parse(options.slo)


def _settings(pairs: Sequence[str], model: ModelMetadata) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name in found:
            raise UsageError(f"--set {pair} {'is given twice' if equals else 'has no value'}.", "Give NAME=VALUE.")
        if name not in model.input_types:
            raise UsageError(
                f"The model {model.name!r} has no input {name!r}: it takes {', '.join(model.input_types)}.",
                "Set one of them.",
            )
        found[name] = value
    return found


def _http(text: str, path: str = "") -> str:
    """Return HOST:PORT, or a URL, as a URL with `path`; empty for an empty text."""
    if not text:
        return ""
    url = text if "://" in text else f"http://{text}"
    return url if path and url.endswith(path) else url.rstrip("/") + path


def _percent(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise UsageError(f"--stable {text} is not a percentage.", "Give a number above 0 and below 100, such as 10%.")
    return value
