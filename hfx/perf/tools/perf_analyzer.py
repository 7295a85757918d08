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

from hfx.client import ModelMetadata
from hfx.errors import HfxError, LoadFailed, UsageError
from hfx.perf.load import Closed, Limits, Plan, Request
from hfx.perf.loadgen.generate import completed, counts_tokens
from hfx.perf.loadgen.log import RequestLog, RequestRecord, Watch
from hfx.perf.server.statistics import Statistics, requests_of
from hfx.perf.tools import install
from hfx.perf.tools.process import Course, ToolProcess
from hfx.perf.tools.recorded import callers_of, check_arguments, due_times, log_of, piece_of

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
        with ToolProcess((str(program.path), *words), folder / "output.txt", program.environment) as process:
            answered = lambda: requests_of(statistics.look(), model.name) - before  # noqa: E731
            course = Course(process, answered, plan, limits, times)
            course.follow(watch, stop, FAILED)
            process.interrupt(limits.timeout, lambda: _is_whole(record))
            if not _is_whole(record):
                raise failure(process.text)
        recorded = read_record(record, plan, times)
    log = RequestLog(stream, counts_tokens(model), interrupted=course.interrupted, cores=course.cores)
    log.single_core, log.stable = False, None if limits.stable is None else course.ended
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


def read_record(path: Path, plan: Plan, times: Sequence[float] = ()) -> list[RequestRecord]:
    """The requests of a record that were answered. Those of an open `plan` were due at `times`.

    Raises HfxError for a damaged record.
    """
    try:
        [experiment] = _read_json(path)["experiments"]
        recorded = [_recorded(each) for each in experiment["requests"] if each["response_timestamps"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HfxError(f"perf_analyzer's record can't be read: {error!r}.", "Run it again.") from error
    if isinstance(plan, Closed):
        callers = callers_of([(each.sent, each.end) for each in recorded], plan.callers)
        return [replace(each, caller=caller) for each, caller in zip(recorded, callers, strict=True)]
    recorded.sort(key=lambda each: each.sent)
    pairs = list(zip(recorded, times, strict=False))  # an interrupted run has fewer
    # The clocks of plan and record meet where a request was least late.
    start = min((each.sent - at for each, at in pairs), default=0.0)
    return [replace(each, due=start + at) for each, at in pairs]


def failure(text: str) -> HfxError:
    """perf_analyzer's failure, by what it printed."""
    unknown = next((line for line in text.splitlines() if "unrecognized option" in line), "")
    if unknown:
        return UsageError(
            f"perf_analyzer has no such flag:{unknown.rpartition(':')[2]}.",
            "`perf_analyzer --help` lists them; `hfx perf tools` says where it is.",
        )
    lines = [line.strip() for line in text.splitlines()]
    for lead in (FAILED, "error:", "Error:", "Failed"):
        reasons = [line.partition(lead)[2].strip() or line for line in lines if lead in line]
        if reasons:
            return LoadFailed(
                f"perf_analyzer ended with the first error: {reasons[-1]}",
                "It can't go on after one; --tool builtin counts them and goes on.",
            )
    return LoadFailed("perf_analyzer got no answer and said nothing.", "Try again, or use --tool builtin.")


def _is_whole(record: Path) -> bool:
    """Whether the record was written to its end, `…"endpoint":""}`; the program may never end after it."""
    try:
        with record.open("rb") as file:
            file.seek(-min(TAIL_BYTES, record.stat().st_size), os.SEEK_END)
            return bool(END.search(file.read()))
    except OSError:
        return False


def _read_json(path: Path) -> Any:
    text = path.read_bytes().decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(LEFT_OUT.sub('":null', text))


def _recorded(request: Mapping[str, Any]) -> RequestRecord:
    sent, times = request["timestamp"] * NANO, [at * NANO for at in request["response_timestamps"]]
    messages = request.get("response_outputs", [])
    return RequestRecord(0, due=sent, sent=sent, end=times[-1], times=times, messages=messages)
