"""Load from locust, headless and in a process of its own: hfx/perf/locustfile.py with the same requests and plans.

Its own CSV and HTML reports are kept, in a folder that the result's notes name. Users write down every request as it
ends; that file says how far the run is, and is its log.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

from hfx.client import ModelMetadata
from hfx.errors import HfxError, LoadFailed, UsageError
from hfx.perf.load import Closed, Limits, Plan
from hfx.perf.loadgen.generate import completed, counts_tokens
from hfx.perf.loadgen.log import Piece, RequestLog, RequestRecord, Watch
from hfx.perf.tools.process import Course, ToolProcess
from hfx.perf.tools.recorded import check_arguments, due_times, log_of

if TYPE_CHECKING:
    from hfx.perf.measuring import MeasureSpec, Target

LOCUSTFILE = Path(__file__).parents[1] / "locustfile.py"
REPORTS = "hfx-locust"  # in the current folder
END_SECONDS = 10.0  # its reports
MAX_USERS = 500  # of an open load
OWN = frozenset({
    "-f", "--locustfile", "-H", "--host", "--model", "-u", "--users", "-r", "--spawn-rate", "-t", "--run-time", "-s",
    "--stop-timeout", "--request-timeout", "--headless", "--autostart", "--master", "--worker", "--processes", "--data",
    "--column", "--lengths", "--max-tokens", "--hfx-folder", "--stream",
})  # fmt: skip


def run_locust(
    target: Target,
    plan: Plan,
    spec: MeasureSpec,
    model: ModelMetadata,
    watch: Watch,
    stop: threading.Event,
) -> RequestLog:
    """Put `plan` to `model` at `target`. Raises UsageError for what locust or the model can't take, and LoadFailed.

    Of an open plan each request has a user that waits for its time; where all are busy it is late, and counts from the
    moment it was due.
    """
    check_arguments(spec.arguments, OWN)
    limits, stream = spec.limits, bool(spec.stream)
    if limits.stable is not None:
        raise UsageError("locust does not know when a load is stable.", "Leave --stable out, or use another --tool.")
    completed(spec.requests, model, stream, limits.timeout)
    times = () if isinstance(plan, Closed) else due_times(plan, limits)
    users = plan.callers if isinstance(plan, Closed) else users_for(times, limits.timeout)
    has_reports = any(word.partition("=")[0] in ("--csv", "--html") for word in spec.arguments)
    reports = None if has_reports else report_folder(target.model)
    with TemporaryDirectory(prefix="hfx-perf-") as name:
        folder = Path(name)
        records = folder / "records.jsonl"
        lines = (
            json.dumps({name: list(values) for name, values in each.inputs.items()}) for each in spec.requests.items
        )
        (folder / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (folder / "times.json").write_text(json.dumps(list(times)))
        records.touch()
        words = (*command(target, users, limits, stream, folder, reports), *spec.arguments)
        with ToolProcess(words, folder / "output.txt") as process:
            course = Course(process, lambda: records.read_bytes().count(b"\n"), plan, limits, times)
            course.follow(watch, stop)
            if course.ended:
                raise failure(process.text)
            process.interrupt(limits.timeout + END_SECONDS)
        recorded = read_records(records)
    notes = () if reports is None else (f"locust's own reports: {reports}",)
    log = RequestLog(stream, counts_tokens(model), interrupted=course.interrupted, cores=course.cores, notes=notes)
    return log_of(recorded, limits, log, lambda piece: Piece(*piece))


def command(
    target: Target, users: int, limits: Limits, stream: bool, folder: Path, reports: Path | None
) -> tuple[str, ...]:
    """The command line, but for what a user adds."""
    kept = () if reports is None else ("--csv", str(reports / "locust"), "--html", str(reports / "report.html"))
    return (
        sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--host", f"grpc://{target.grpc_url}",
        "--users", str(users), "--spawn-rate", str(users), "--stop-timeout", f"{math.ceil(limits.timeout)}",
        "--model", target.model, "--request-timeout", f"{limits.timeout:g}",
        "--hfx-folder", str(folder), *(("--stream",) if stream else ()), *kept,
    )  # fmt: skip


def users_for(times: Sequence[float], timeout: float) -> int:
    """How many users an open load may need: as many as requests that can be under way at the same time."""
    most, first = 1, 0
    for index, at in enumerate(times):
        while times[first] <= at - timeout:
            first += 1
        most = max(most, index - first + 1)
    return min(most, MAX_USERS)


def report_folder(model: str) -> Path:
    """A new folder for locust's own reports, in the current one where that can be."""
    try:
        folder = Path(REPORTS) / f"{model}-{datetime.now().strftime('%Y%m%d-%H%M%S-%f')}"
        folder.mkdir(parents=True)
    except OSError:
        return Path(mkdtemp(prefix=f"{REPORTS}-"))
    return folder


def read_records(path: Path) -> list[RequestRecord]:
    """The requests that users wrote down; a last line that is not whole is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    records = []
    for values in (json.loads(line) for line in lines if line.endswith("\n")):
        pieces, error = values.pop("pieces"), values.pop("error")
        records.append(RequestRecord(0, messages=pieces, error=tuple(error) if error else None, **values))
    return records


def failure(text: str) -> HfxError:
    """locust's failure, by the last error that it printed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it printed nothing"]
    line = [*lines, *(line for line in lines if "/ERROR/" in line or "error:" in line)][-1]
    kind = UsageError if "unrecognized arguments" in line else LoadFailed
    return kind(f"locust ended by itself: {line.partition(': ')[2] or line}", "`locust --help` shows its options.")
