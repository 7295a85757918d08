"""Load from NVIDIA's perf_analyzer, a C++ program: the same requests and plans as of the built-in generator.

It measures windows without end, and is interrupted when the server has answered what was ordered: with a fixed number
of requests it now and then waits for ever after the last one, and its own rate is of whole seconds. Open plans are
given to it as a file of pauses, and latency counts from the moment a request was due.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hfx import names
from hfx.client import ModelMetadata
from hfx.errors import HfxError
from hfx.perf.load import Closed, Limits, Plan, Request
from hfx.perf.loadgen.generate import completed, counts_tokens
from hfx.perf.loadgen.log import Piece, RequestLog, RequestRecord, Watch
from hfx.perf.server.statistics import Statistics, requests_of
from hfx.perf.tools import install
from hfx.perf.tools.process import ToolProcess, follow
from hfx.perf.tools.recorded import callers_of, check_arguments, due_times, failure, log_of

if TYPE_CHECKING:
    from hfx.perf.measuring import MeasureSpec, Target

MICRO, NANO = 1e-6, 1e-9
WINDOW_SECONDS = 0.5
NEVER_STABLE = "0.000001"  # per cent
MAX_WINDOWS = 1_000_000
NEVER = 3600.0  # seconds: after the last request; perf_analyzer begins anew otherwise
START_SECONDS = 0.001  # before the first
FAILED = "had error:"
TAIL_BYTES = 200
END = re.compile(rb'\],"version":"[^"]*","service_kind":"[^"]*","endpoint":"[^"]*"\}\s*$')
# A float that JSON does not have is left out by perf_analyzer: `"output_log_probs":,`
LEFT_OUT = re.compile(r'(?<!\\)":(?=[,}\]])')
# Flags that hfx sets itself.
OWN = frozenset({
    "-m", "-u", "-i", "--service-kind", "--streaming", "-t", "-c", "-d", "--concurrency-range",
    "--periodic-concurrency-range", "--request-period", "--request-rate-range", "--request-distribution",
    "--request-intervals", "--binary-search", "-p", "--measurement-interval", "--measurement-mode",
    "--measurement-request-count", "--request-count", "-s", "--stability-percentage", "-r", "--max-trials", "-l",
    "--latency-threshold", "-b", "-z", "--input-data", "--data-directory", "--shape", "--string-data",
    "--string-length", "--profile-export-file",
})  # fmt: skip


def run_perf_analyzer(
    target: Target,
    plan: Plan,
    spec: MeasureSpec,
    model: ModelMetadata,
    watch: Watch,
    stop: threading.Event,
) -> RequestLog:
    """Put `plan` to `model` at `target`. Raises UsageError for what it or the model can't take, and LoadFailed.

    A request that fails ends perf_analyzer's run, and with it this one.
    """
    check_arguments(spec.arguments, OWN)
    program, limits, stream = install.find(), spec.limits, bool(spec.stream)
    requests = completed(spec.requests, model, stream, limits.timeout)
    times = () if isinstance(plan, Closed) else due_times(plan, limits)
    with TemporaryDirectory(prefix="hfx-perf-") as name, Statistics(target.grpc_url) as statistics:
        folder = Path(name)
        record = folder / "record.json"
        write_inputs(requests, folder / "inputs.json")
        write_times(times, folder / "pauses.txt")
        words = (*command(target, model.name, plan, limits, stream, folder), *spec.arguments)
        before = requests_of(statistics.look(), model.name)
        answered = lambda: requests_of(statistics.look(), model.name) - before  # noqa: E731
        with ToolProcess((str(program.path), *words), folder / "output.txt", program.environment) as process:
            cores = follow(process, answered, plan, limits, watch, stop, times, FAILED)
            stable = None if limits.stable is None else not process.alive
            process.interrupt(limits.timeout, lambda: is_whole(record))
            if not is_whole(record):
                raise failure(install.NAME, process.text)
        recorded = read_record(record, plan, times)
    log = RequestLog(
        stream, counts_tokens(model), stable=stable, interrupted=stop.is_set(), cores=cores, single_core=False
    )
    return log_of(recorded, limits, log, piece_of)


def command(target: Target, model: str, plan: Plan, limits: Limits, stream: bool, folder: Path) -> tuple[str, ...]:
    """perf_analyzer's arguments, but for those that a user adds."""
    window = WINDOW_SECONDS if limits.stable is None else limits.window
    if isinstance(plan, Closed):
        load: tuple[str, ...] = ("--concurrency-range", str(plan.callers))
    else:  # without --async, few threads would wait for their answers
        load = ("--request-intervals", str(folder / "pauses.txt"), "--async")
    return (
        "-m", model, "-i", "grpc", "-u", target.grpc_url, *(("--streaming",) if stream else ()),
        "--input-data", str(folder / "inputs.json"), "--profile-export-file", str(folder / "record.json"), *load,
        "--measurement-interval", str(round(window * 1e3)), "--max-trials", str(MAX_WINDOWS),
        "--stability-percentage", NEVER_STABLE if limits.stable is None else f"{limits.stable:g}",
    )  # fmt: skip


def write_inputs(requests: Sequence[Request], path: Path) -> None:
    """The requests, which are sent in turn."""
    data = [
        {name: {"content": list(values), "shape": [len(values)]} for name, values in request.inputs.items()}
        for request in requests
    ]
    path.write_text(json.dumps({"data": data}), encoding="utf-8")


def write_times(times: Sequence[float], path: Path) -> None:
    """When each request is sent, in seconds from the start, as the pauses before each in microseconds."""
    pauses = [START_SECONDS, *(later - earlier for earlier, later in itertools.pairwise(times)), NEVER]
    path.write_text("".join(f"{round(pause / MICRO)}\n" for pause in pauses), encoding="utf-8")


def is_whole(record: Path) -> bool:
    """Whether the record was written to its end, `…"endpoint":""}`; the program may never end after it."""
    try:
        with record.open("rb") as file:  # only its end: a long run's record has hundreds of megabytes
            file.seek(-min(TAIL_BYTES, record.stat().st_size), os.SEEK_END)
            return bool(END.search(file.read()))
    except OSError:
        return False


def read_record(path: Path, plan: Plan, times: Sequence[float] = ()) -> list[RequestRecord]:
    """The requests of a record that were answered, as they were sent. Those of an open `plan` were due at `times`.

    Raises HfxError for a damaged record.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
        try:
            whole = json.loads(text)
        except ValueError:  # not always, as the pattern may also stand in a text that a model wrote
            whole = json.loads(LEFT_OUT.sub('":null', text))
        [experiment] = whole["experiments"]
        recorded = [_recorded(each) for each in experiment["requests"] if each["response_timestamps"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HfxError(f"perf_analyzer's record can't be read: {error!r}.", "Run it again.") from error
    recorded.sort(key=lambda each: each.sent)
    if isinstance(plan, Closed):
        callers = callers_of([(each.sent, each.end) for each in recorded], plan.callers)
        return [replace(each, caller=caller) for each, caller in zip(recorded, callers, strict=True)]
    pairs = list(zip(recorded, times, strict=False))  # an interrupted run has fewer
    # The clocks of plan and record meet where a request was least late.
    start = min((each.sent - at for each, at in pairs), default=0.0)
    return [replace(each, due=start + at) for each, at in pairs]


def piece_of(outputs: Mapping[str, Any]) -> Piece:
    """From the outputs of an answer by name."""
    read, written, truncated = (
        int(outputs.get(name) or 0) for name in (names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.TRUNCATED_TOKENS)
    )
    return Piece(read, written, truncated, str(outputs.get(names.FINISH_REASON) or ""))


def _recorded(request: Mapping[str, Any]) -> RequestRecord:
    sent, times = request["timestamp"] * NANO, [at * NANO for at in request["response_timestamps"]]
    messages = request.get("response_outputs", [])
    return RequestRecord(0, due=sent, sent=sent, end=times[-1], times=times, messages=messages)
