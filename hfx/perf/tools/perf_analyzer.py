"""NVIDIA's perf_analyzer, a C++ program: finding it, fetching it, and running it.

Its package can't be installed beside hfx, because tritonclient 2.51.0 needs protobuf below 5. Only the binary is taken
from that wheel; two missing libraries come from the nvidia-pytriton wheel. A perf_analyzer on PATH is used, too.

It is started with endless windows, and interrupted when the server has answered the requests of the run: with a fixed
number of requests it sometimes hangs after the last one, and it rounds rates to seconds. Open plans are passed as a
file of pauses, and latency counts from the due time of a request.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hfx
from hfx.errors import HfxError, LoadFailed, ServerError, UsageError
from hfx.extras import install_command, versions
from hfx.perf import cache
from hfx.perf.load import Closed, Plan, Request
from hfx.perf.loadgen.log import AnswerPart, LoadRun, RequestLog, RequestRecord
from hfx.perf.server.statistics import Statistics, requests_of
from hfx.perf.tools.process import ToolProcess, callers_of, failure, follow, log_of, ordered

NAME = "perf_analyzer"
PINS = ("tritonclient==2.51.0",)
LIBRARIES_FOLDER = "perf_analyzer-libraries"
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
FETCH = "Run: hfx perf tools perf_analyzer    (fetches 19 MB with pip, apart from your packages)"
VERSION_SECONDS = 20.0


@dataclass(frozen=True)
class Program:
    """An installed perf_analyzer that runs here. `libraries` is a folder for LD_LIBRARY_PATH; None if it needs none."""

    path: Path
    version: str
    libraries: Path | None = None

    @property
    def command(self) -> str:
        """The beginning of a shell command that runs the program."""
        libraries = f"LD_LIBRARY_PATH={shlex.quote(str(self.libraries))} " if self.libraries else ""
        return libraries + shlex.quote(str(self.path))

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables of the tool's process."""
        searched = [str(self.libraries or ""), os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, searched))}


@dataclass(frozen=True)
class Tool:
    """A load generator. `version` and `where` (its path) are empty if it is missing; then `fix` says how to get it."""

    name: str
    about: str
    version: str = ""
    where: str = ""
    fix: str = ""


def tools() -> tuple[Tool, ...]:
    """Return the values of `hfx perf run --tool`."""
    builtin = Tool("builtin", "asyncio over gRPC, closed and open loop, streaming", hfx.__version__, "part of hfx")
    analyzer = Tool(NAME, "NVIDIA's, in C++: closed and open loop, streaming")
    version = versions(["locust"]).get("locust", "")
    locust = Tool("locust", "in Python, with a web page of its own; gRPC, HTTP, streaming", version)
    try:
        program = find()
        analyzer = replace(analyzer, version=program.version, where=str(program.path))
    except UsageError as error:
        analyzer = replace(analyzer, fix=f"{error.message} {error.fix}")
    if locust.version:
        locust = replace(locust, where=str(Path(__file__).parents[1] / "locustfile.py"))
    else:
        locust = replace(locust, fix=f"Run: {install_command('perf')}")
    return builtin, analyzer, locust


def find() -> Program:
    """Return the fetched perf_analyzer, or the one on PATH. Raises UsageError, which says how to get it."""
    if folder := cache.installed(NAME, PINS):
        return _checked(folder / "bin" / NAME, _libraries())
    if on_path := shutil.which(NAME):
        return _checked(Path(on_path), None)
    raise UsageError("perf_analyzer is not here: neither fetched nor on PATH.", FETCH)


def fetch() -> Program:
    """Fetch perf_analyzer unless it is already there. Raises FetchFailed, and UsageError if it does not run here."""
    folder = cache.packages(NAME, PINS, lambda folder: (folder / "bin" / NAME).chmod(0o755))
    return _checked(folder / "bin" / NAME, _libraries())


def _libraries() -> Path | None:
    """Return a folder with the libraries that the binary lacks, copied from the nvidia-pytriton wheel.

    Returns None without that wheel.
    """

    def copy(folder: Path) -> None:
        from hfx.triton.installation import libraries

        for name, pattern in LIBRARIES.items():
            for library in libraries().glob(pattern):
                shutil.copyfile(library, folder / name)

    try:
        return cache.made(LIBRARIES_FOLDER, copy)
    except ServerError:
        return None  # the system may have the libraries


def _checked(path: Path, libraries: Path | None) -> Program:
    """Return the program at `path`, with its version. Raises UsageError if it does not run."""
    program = Program(path, "", libraries)
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, env=program.environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} does not run: {error}.", FETCH) from error
    # perf_analyzer prints `Perf Analyzer Version 2.51.0 (commit unknown)`, but exits with an error code.
    version = re.search(r"Version (\S+)", done.stdout + done.stderr)
    if version is None:
        reason = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        fix = f"Its libraries come with: {install_command('embedded')}" if "shared librar" in reason else FETCH
        raise UsageError(f"{path} does not run: {reason}.", fix)
    return replace(program, version=version[1])


# Running it

MICRO, NANO = 1e-6, 1e-9
WINDOW_SECONDS = 0.5
NEVER_STABLE = "0.000001"  # per cent
MAX_WINDOWS = 1_000_000
NEVER = 3600.0  # seconds of pause after the last request, because perf_analyzer repeats the pauses
START_SECONDS = 0.001  # the pause before the first request
FAILED = "had error:"
MOST_LOST = 3  # number of incomplete records after which a run fails
TAIL_BYTES = 200
END = re.compile(rb'\],"version":"[^"]*","service_kind":"[^"]*","endpoint":"[^"]*"\}\s*$')
# perf_analyzer omits floats that JSON does not have: `"output_log_probs":,`
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


def run_perf_analyzer(run: LoadRun) -> RequestLog:
    """Carry out `run` with perf_analyzer. Raises LoadFailed, and UsageError for what it or the model does not support.

    A failed request ends perf_analyzer, and with it the run. A run with an incomplete record is repeated: in 1 to 10 %
    of runs with streams, perf_analyzer reads a random NaN after an FP32 output without values, and then writes nothing
    more.
    """
    ordered_requests, program = ordered(run, OWN), find()
    lost = 0
    while (log := _measure(run, program, *ordered_requests, last=lost == MOST_LOST)) is None:
        lost += 1
    notes = (f"perf_analyzer did not finish its record, so it measured {lost + 1} times; the last time counts.",)
    return replace(log, notes=log.notes + notes) if lost else log


def _measure(
    run: LoadRun, program: Program, requests: Sequence[Request], times: Sequence[float], last: bool
) -> RequestLog | None:
    """Return the log of one try; None for an incomplete record, unless this is the `last` try or the run is stopped."""
    spec, limits, model = run.spec, run.spec.limits, run.model.name
    with TemporaryDirectory(prefix="hfx-perf-") as name, Statistics(run.target.grpc_url) as statistics:
        folder = Path(name)
        record = folder / "record.json"
        write_inputs(requests, folder / "inputs.json")
        write_times(times, folder / "pauses.txt")
        words = (*command(run, folder), *spec.arguments)
        before = requests_of(statistics.snapshot(), model)
        answered = lambda: requests_of(statistics.snapshot(), model) - before  # noqa: E731
        with ToolProcess((str(program.path), *words), folder / "output.txt", program.environment) as process:
            cores = follow(process, answered, run, times, FAILED)
            stable = None if limits.stable is None else not process.alive
            process.interrupt(limits.timeout, lambda: is_whole(record))
            if not is_whole(record):
                if process.alive or not record.exists():
                    raise failure(NAME, process.text)
                if last or run.stop.is_set():
                    raise LoadFailed("perf_analyzer did not finish its record.", "Run it again, or use --tool builtin.")
                return None
        recorded = read_record(record, run.plan, times)
    return log_of(recorded, run, AnswerPart.of, stable=stable, cores=cores, single_core=False)


def command(run: LoadRun, folder: Path) -> tuple[str, ...]:
    """Return perf_analyzer's arguments without the user's flags."""
    limits = run.spec.limits
    window = WINDOW_SECONDS if limits.stable is None else limits.window
    if isinstance(run.plan, Closed):
        load: tuple[str, ...] = ("--concurrency-range", str(run.plan.callers))
    else:  # without --async, a few threads would wait for answers
        load = ("--request-intervals", str(folder / "pauses.txt"), "--async")
    return (
        "-m", run.model.name, "-i", "grpc", "-u", run.target.grpc_url, *(("--streaming",) if run.spec.stream else ()),
        "--input-data", str(folder / "inputs.json"), "--profile-export-file", str(folder / "record.json"), *load,
        "--measurement-interval", str(round(window * 1e3)), "--max-trials", str(MAX_WINDOWS),
        "--stability-percentage", NEVER_STABLE if limits.stable is None else f"{limits.stable:g}",
    )  # fmt: skip


def write_inputs(requests: Sequence[Request], path: Path) -> None:
    """Write the requests, which perf_analyzer sends in turn, to `path`."""
    data = [
        {name: {"content": list(values), "shape": [len(values)]} for name, values in request.inputs.items()}
        for request in requests
    ]
    path.write_text(json.dumps({"data": data}), encoding="utf-8")


def write_times(times: Sequence[float], path: Path) -> None:
    """Write send times (seconds from the start) to `path`, as the pause before each request in microseconds."""
    pauses = [START_SECONDS, *(later - earlier for earlier, later in itertools.pairwise(times)), NEVER]
    path.write_text("".join(f"{round(pause / MICRO)}\n" for pause in pauses), encoding="utf-8")


def is_whole(record: Path) -> bool:
    """Return whether the record is complete (`…"endpoint":""}`). perf_analyzer may hang after writing it."""
    try:
        with record.open("rb") as file:  # read only its end, as a record can have hundreds of megabytes
            file.seek(-min(TAIL_BYTES, record.stat().st_size), os.SEEK_END)
            return bool(END.search(file.read()))
    except OSError:
        return False


def read_record(path: Path, plan: Plan, times: Sequence[float] = ()) -> list[RequestRecord]:
    """Return the answered requests of a record, in the order of sending.

    Requests of an open `plan` were due at `times`.

    Raises HfxError for a damaged record.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
        try:
            whole = json.loads(text)
        except ValueError:  # repaired only if necessary, because a generated text may contain the pattern, too
            whole = json.loads(LEFT_OUT.sub('":null', text))
        [experiment] = whole["experiments"]
        recorded = [_recorded(each) for each in experiment["requests"] if each["response_timestamps"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HfxError(f"perf_analyzer's record can't be read: {error!r}.", "Run it again.") from error
    recorded.sort(key=lambda each: each.sent)
    if isinstance(plan, Closed):
        callers = callers_of([(each.sent, each.end) for each in recorded], plan.callers)
        return [replace(each, caller=caller) for each, caller in zip(recorded, callers, strict=True)]
    pairs = list(zip(recorded, times, strict=False))  # an interrupted run has fewer records than times
    # The start of the plan on the record's clock, such that the least late request was in time.
    start = min((each.sent - at for each, at in pairs), default=0.0)
    return [replace(each, due=start + at) for each, at in pairs]


def _recorded(request: Mapping[str, Any]) -> RequestRecord:
    sent, times = request["timestamp"] * NANO, [at * NANO for at in request["response_timestamps"]]
    messages = request.get("response_outputs", [])
    return RequestRecord(0, due=sent, sent=sent, end=times[-1], times=times, messages=messages)
