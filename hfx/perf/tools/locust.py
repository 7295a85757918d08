"""Load from locust, headless and in a process of its own: hfx/perf/locustfile.py with the same requests and plans.

Its own CSV and HTML reports are kept, in a folder that the result's notes name. Users write down every request as it
ends; that file says how far the run is, and is its log.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

from hfx.client import ModelMetadata
from hfx.errors import UsageError
from hfx.perf.load import Closed, Limits, Plan
from hfx.perf.loadgen.generate import completed, counts_tokens
from hfx.perf.loadgen.log import Piece, RequestLog, RequestRecord, Watch
from hfx.perf.tools.process import ToolProcess, follow
from hfx.perf.tools.recorded import check_arguments, due_times, failure, log_of

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
    users = plan.callers if isinstance(plan, Closed) else min(len(times), MAX_USERS)
    has_reports = any(word.partition("=")[0] in ("--csv", "--html") for word in spec.arguments)
    reports = None if has_reports else report_folder(target.model)
    with TemporaryDirectory(prefix="hfx-perf-") as name:
        folder = Path(name)
        records = folder / "records.jsonl"
        load = {"requests": [each.inputs for each in spec.requests.items], "times": times}
        (folder / "load.json").write_text(json.dumps(load), encoding="utf-8")
        records.touch()
        words = (*command(target, users, limits, stream, folder, reports), *spec.arguments)
        answered = lambda: records.read_bytes().count(b"\n")  # noqa: E731
        with ToolProcess(words, folder / "output.txt") as process:
            cores = follow(process, answered, plan, limits, watch, stop, times)
            if not process.alive:
                raise failure("locust", process.text)
            process.interrupt(limits.timeout + END_SECONDS)
        recorded = read_records(records)
    notes = () if reports is None else (f"locust's own reports: {reports}",)
    log = RequestLog(stream, counts_tokens(model), interrupted=stop.is_set(), cores=cores, notes=notes)
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
