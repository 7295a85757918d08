"""Load from NVIDIA's perf_analyzer, a C++ program: the same requests, plans and figures as of the built-in generator.

It runs in short windows without an end of its own, and is interrupted when the server has answered what was ordered:
with a fixed number of requests it now and then waits for ever after the last one, and its own rate is of whole seconds.
Open plans are given to it as a file of pauses, so that every kind of arrival is sent as the built-in generator would,
and latency counts from the moment a request was due. It must not know how figures are made of requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hfx import names
from hfx.client import Client, ModelMetadata
from hfx.errors import LoadFailed, UsageError
from hfx.metadata import check_values
from hfx.perf.builtin import Generated, Progress
from hfx.perf.builtin.generator import check
from hfx.perf.load import Closed, Limits, Plan
from hfx.perf.tools import install
from hfx.perf.tools.analyzer_files import read_record, write_inputs, write_times
from hfx.perf.tools.analyzer_process import Job, carried_out
from hfx.perf.tools.requested import due_times, generated

if TYPE_CHECKING:
    from hfx.perf.measuring import MeasureSpec, Target

WINDOW_SECONDS = 0.5
NEVER_STABLE = "0.000001"  # per cent
MOST_WINDOWS = 1_000_000
METADATA_SECONDS = 10.0
INT32_MAX = 2**31 - 1
# What hfx sets itself, under all its names.
OWN = {
    "the model": ("-m",),
    "the server": ("-u", "-i", "--service-kind", "--streaming"),
    "the load": (
        "-t", "-c", "-d", "--concurrency-range", "--periodic-concurrency-range", "--request-period",
        "--request-rate-range", "--request-distribution", "--request-intervals", "--binary-search",
    ),
    "the limits": (
        "-p", "--measurement-interval", "--measurement-mode", "--measurement-request-count", "--request-count",
        "-s", "--stability-percentage", "-r", "--max-trials", "-l", "--latency-threshold",
    ),
    "the requests": ("-b", "-z", "--input-data", "--data-directory", "--shape", "--string-data", "--string-length"),
    "the record": ("--profile-export-file",),
}  # fmt: skip
OPTIONS = {
    "the model": "NAME",
    "the server": "--url",
    "the load": "--concurrency and --rate",
    "the limits": "--requests, --duration, --warmup and --stable",
    "the requests": "--data",
    "the record": "--output",
}


def run_perf_analyzer(
    target: Target,
    plan: Plan,
    order: MeasureSpec,
    watch: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Generated:
    """Put PLAN to TARGET by perf_analyzer. Raises UsageError for what it or the model can't take, and LoadFailed.

    A request that fails ends perf_analyzer's run, and with it this one.
    """
    stream = bool(order.stream)
    check_arguments(order.arguments)
    check(plan, order.limits, order.slo, stream)
    program = install.find()
    model = target.model + names.STREAM_SUFFIX if stream else target.model
    metadata = _metadata(target, model)
    extra = _extra(metadata, order.limits, stream)
    for ask in order.asks.items:
        check_values(metadata, {name: list(values) for name, values in ask.inputs.items()})
    times = () if isinstance(plan, Closed) else due_times(plan, order.limits)
    counts = any(tensor.name == names.OUTPUT_TOKENS for tensor in metadata.outputs)
    with TemporaryDirectory(prefix="hfx-perf-") as folder:
        files = Files(Path(folder))
        write_inputs(order.asks, files.inputs, extra)
        if times:
            write_times(times, files.times)
        words = command(target, model, plan, order.limits, stream, files)
        job = Job(program, (*words, *order.arguments), target.grpc_url, model, plan, order.limits, times, files.record)
        ended = carried_out(job, watch, stop)
        asked = read_record(files.record, plan, times)
    if not asked:
        raise LoadFailed(
            f"perf_analyzer got no answer from {model} within {order.limits.timeout:g} s.",
            f"Try one alone: hfx infer {target.model} TEXT",
        )
    return generated(asked, plan, order.limits, order.slo, stream, counts, ended)


@dataclass(frozen=True)
class Files:
    """What perf_analyzer reads and writes, in a folder of its own."""

    folder: Path

    @property
    def inputs(self) -> Path:
        """The requests."""
        return self.folder / "inputs.json"

    @property
    def times(self) -> Path:
        """The pauses between them."""
        return self.folder / "pauses.txt"

    @property
    def record(self) -> Path:
        """What became of them; it must not be there before."""
        return self.folder / "record.json"


def command(target: Target, model: str, plan: Plan, limits: Limits, stream: bool, files: Files) -> tuple[str, ...]:
    """perf_analyzer's arguments, but for those that a user adds."""
    stable = limits.stable is not None
    window = limits.window if stable else WINDOW_SECONDS
    load = ("--concurrency-range", str(plan.callers)) if isinstance(plan, Closed) else _open(files)
    return (
        "-m", model, "-i", "grpc", "-u", target.grpc_url, *(("--streaming",) if stream else ()),
        "--input-data", str(files.inputs), "--profile-export-file", str(files.record), *load,
        "--measurement-interval", str(round(window * 1e3)), "--max-trials", str(MOST_WINDOWS),
        "--stability-percentage", f"{limits.stable:g}" if limits.stable is not None else NEVER_STABLE,
    )  # fmt: skip


def check_arguments(words: Sequence[str]) -> None:
    """Raise UsageError for a flag that hfx sets itself."""
    own = {flag: what for what, flags in OWN.items() for flag in flags}
    for word in words:
        what = own.get(word.partition("=")[0])
        if what is not None:
            raise UsageError(
                f"perf_analyzer's {word} is set by hfx: it is {what}.", f"Use {OPTIONS[what]} of hfx perf run instead."
            )


def _open(files: Files) -> tuple[str, ...]:
    return ("--request-intervals", str(files.times), "--async")  # else few threads would wait for their answers


def _metadata(target: Target, model: str) -> ModelMetadata:
    with Client(target.grpc_url, timeout=METADATA_SECONDS, retries=0) as client:
        return client.metadata(model)


def _extra(metadata: ModelMetadata, limits: Limits, stream: bool) -> Mapping[str, Any]:
    """What the built-in generator adds too: a deadline, so that no generator goes on for nobody."""
    extra: dict[str, Any] = {}
    if names.TIMEOUT_MS in metadata.input_types:
        extra[names.TIMEOUT_MS] = min(max(1, round(limits.timeout * 1e3)), INT32_MAX)
    if stream:
        extra[names.STREAM] = True
    return extra
