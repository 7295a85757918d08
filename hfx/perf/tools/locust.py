"""Load from locust, which runs hfx/perf/locustfile.py headless in a separate process.

locust's own CSV and HTML reports are kept in a folder, which a note of the result names. Its users write a record for
each finished request to a file, from which the progress and finally the log are made.
"""

from __future__ import annotations

import json
import math
import sys
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from hfx.errors import UsageError
from hfx.perf.load import Closed
from hfx.perf.loadgen.log import AnswerPart, LoadRun, RequestLog, RequestRecord
from hfx.perf.tools.process import ToolProcess, failure, follow, log_of, ordered

LOCUSTFILE = Path(__file__).parents[1] / "locustfile.py"
REPORTS = "hfx-locust"  # a folder in the current folder
END_SECONDS = 10.0  # time for writing the reports
MAX_USERS = 500  # for an open plan
OWN = frozenset({
    "-f", "--locustfile", "-H", "--host", "--model", "-u", "--users", "-r", "--spawn-rate", "-t", "--run-time", "-s",
    "--stop-timeout", "--request-timeout", "--headless", "--autostart", "--master", "--worker", "--processes", "--data",
    "--column", "--lengths", "--max-tokens", "--hfx-folder", "--stream",
})  # fmt: skip


def run_locust(run: LoadRun) -> RequestLog:
    """Carry out `run` with locust. Raises LoadFailed, and UsageError for what locust or the model does not support.

    In an open plan, idle users wait for the due times. If all users are busy, a request is sent late, and its latency
    counts from its due time.
    """
    spec, limits = run.spec, run.spec.limits
    if limits.stable is not None:
        raise UsageError("locust does not know when a load is stable.", "Leave --stable out, or use another --tool.")
    _, times = ordered(run, OWN)  # locust's users add `stream` and the deadline themselves
    has_reports = any(word.partition("=")[0] in ("--csv", "--html") for word in spec.arguments)
    reports = None if has_reports else report_folder(run.target.model)
    with TemporaryDirectory(prefix="hfx-perf-") as name:
        folder = Path(name)
        records = folder / "records.jsonl"
        load = {"requests": [each.inputs for each in spec.requests.items], "times": times}
        (folder / "load.json").write_text(json.dumps(load), encoding="utf-8")
        records.touch()
        words = (*command(run, len(times), folder, reports), *spec.arguments)
        answered = lambda: records.read_bytes().count(b"\n")  # noqa: E731
        with ToolProcess(words, folder / "output.txt") as process:
            cores = follow(process, answered, run, times)
            if not process.alive:
                raise failure("locust", process.text)
            process.interrupt(limits.timeout + END_SECONDS)
        recorded = read_records(records)
    notes = () if reports is None else (f"locust's own reports: {reports}",)
    return log_of(recorded, run, lambda piece: AnswerPart(*piece), cores=cores, notes=notes)


def command(run: LoadRun, requests: int, folder: Path, reports: Path | None) -> tuple[str, ...]:
    """Return locust's command line without the user's flags. `requests` is the number of requests of an open plan."""
    users = run.plan.callers if isinstance(run.plan, Closed) else min(requests, MAX_USERS)
    target, timeout = run.target, run.spec.limits.timeout
    kept = () if reports is None else ("--csv", str(reports / "locust"), "--html", str(reports / "report.html"))
    return (
        sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--host", f"grpc://{target.grpc_url}",
        "--users", str(users), "--spawn-rate", str(users), "--stop-timeout", f"{math.ceil(timeout)}",
        "--model", target.model, "--request-timeout", f"{timeout:g}",
        "--hfx-folder", str(folder), *(("--stream",) if run.spec.stream else ()), *kept,
    )  # fmt: skip


def report_folder(model: str) -> Path:
    """Return a new folder for locust's own reports, below the current folder or else the folder for temporary files."""
    try:
        folder = Path(REPORTS) / f"{model}-{datetime.now().strftime('%Y%m%d-%H%M%S-%f')}"
        folder.mkdir(parents=True)
    except OSError:
        return Path(mkdtemp(prefix=f"{REPORTS}-"))
    return folder


def read_records(path: Path) -> list[RequestRecord]:
    """Read the records that users wrote. An incomplete last line is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    records = []
    for values in (json.loads(line) for line in lines if line.endswith("\n")):
        pieces, error = values.pop("pieces"), values.pop("error")
        records.append(RequestRecord(0, messages=pieces, error=tuple(error) if error else None, **values))
    return records
