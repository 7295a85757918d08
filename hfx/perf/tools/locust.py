"""Load from locust, headless and in a process of its own: perf/locustfile.py with the same requests, plans and figures.

Its own CSV and HTML reports are kept, in a folder that the result's notes name. Users write down every request as it
ends; that file says how far the run is, and what the figures are made of. It must not know how figures are made.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any

from hfx import names
from hfx.client import Client
from hfx.errors import LoadFailed, UsageError
from hfx.metadata import check_values
from hfx.perf.builtin import Generated, Progress
from hfx.perf.builtin.generator import check
from hfx.perf.builtin.messages import Piece
from hfx.perf.load import Closed, Limits, Plan, RequestSet
from hfx.perf.tools.locust_process import Job, carried_out
from hfx.perf.tools.requested import Asked, due_times, generated

if TYPE_CHECKING:
    from hfx.perf.measuring import MeasureSpec, Target

LOCUSTFILE = Path(__file__).parents[1] / "locustfile.py"
REPORTS = "hfx-locust"  # in the current folder
METADATA_SECONDS = 10.0
MOST_USERS = 500  # of an open load
OWN = {
    "-f": "the users", "--locustfile": "the users", "-H": "the server", "--host": "the server", "--model": "the model",
    "-u": "the load", "--users": "the load", "-r": "the load", "--spawn-rate": "the load",
    "-t": "the limits", "--run-time": "the limits", "-s": "the limits", "--stop-timeout": "the limits",
    "--request-timeout": "the limits", "--headless": "the way it runs", "--autostart": "the way it runs",
    "--master": "the way it runs", "--worker": "the way it runs", "--processes": "the way it runs",
    "--data": "the requests", "--column": "the requests", "--lengths": "the requests", "--max-tokens": "the requests",
    "--requests-file": "the requests", "--times": "the load", "--records": "the record", "--stream": "the requests",
}  # fmt: skip


def run_locust(
    target: Target,
    plan: Plan,
    order: MeasureSpec,
    watch: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Generated:
    """Put PLAN to TARGET by locust. Raises UsageError for what it or the model can't take, and LoadFailed.

    Of an open plan each request has a user who waits for its time; where all are busy it is late, and counts from the
    moment it was due.
    """
    stream, limits = bool(order.stream), order.limits
    check_arguments(order.arguments)
    check(plan, limits, order.slo, stream)
    _check_stable(limits)
    counts = _counts(target, order.asks, stream)
    times = () if isinstance(plan, Closed) else due_times(plan, limits)
    users = plan.callers if isinstance(plan, Closed) else users_for(times, limits.timeout)
    with TemporaryDirectory(prefix="hfx-perf-") as folder:
        files = Files(Path(folder))
        files.write(order.asks, times)
        reports = None if _has_reports(order.arguments) else report_folder(target.model)
        words = command(target, users, limits, stream, files, reports)
        job = Job((*words, *order.arguments), plan, limits, len(times), files.records, files.output)
        ended = carried_out(job, watch, stop)
        asked = read_records(files.records)
    if not asked:
        raise LoadFailed(f"locust got no answer from {target.model}.", f"Try one alone: hfx infer {target.model} TEXT")
    made = generated(asked, plan, limits, order.slo, stream, counts, ended)
    return _with_reports(made, reports)


@dataclass(frozen=True)
class Files:
    """What locust reads and writes, in a folder of its own."""

    folder: Path

    @property
    def requests(self) -> Path:
        """A request a line."""
        return self.folder / "requests.jsonl"

    @property
    def times(self) -> Path:
        """When they are due."""
        return self.folder / "times.json"

    @property
    def records(self) -> Path:
        """What became of them."""
        return self.folder / "records.jsonl"

    @property
    def output(self) -> Path:
        """What locust says."""
        return self.folder / "output.txt"

    def write(self, asks: RequestSet, times: Sequence[float]) -> None:
        """The files that are read."""
        lines = (json.dumps({name: list(values) for name, values in ask.inputs.items()}) for ask in asks.items)
        self.requests.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        self.times.write_text(json.dumps(list(times)))
        self.records.touch()


def command(
    target: Target, users: int, limits: Limits, stream: bool, files: Files, reports: Path | None
) -> tuple[str, ...]:
    """The command line, but for what a user adds."""
    kept = () if reports is None else ("--csv", str(reports / "locust"), "--html", str(reports / "report.html"))
    return (
        sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--host", f"grpc://{target.grpc_url}",
        "--users", str(users), "--spawn-rate", str(users), "--stop-timeout", f"{math.ceil(limits.timeout)}",
        "--model", target.model, "--request-timeout", f"{limits.timeout:g}", "--requests-file", str(files.requests),
        "--times", str(files.times), "--records", str(files.records), *(("--stream",) if stream else ()), *kept,
    )  # fmt: skip


def check_arguments(words: Sequence[str]) -> None:
    """Raise UsageError for an option that hfx sets itself."""
    for word in words:
        what = OWN.get(word.partition("=")[0])
        if what is not None:
            raise UsageError(f"locust's {word} is set by hfx: it is {what}.", "Use the option of hfx perf run instead.")


def users_for(times: Sequence[float], timeout: float) -> int:
    """How many users an open load may need: as many as requests that can be under way at the same time."""
    most, first = 1, 0
    for index, at in enumerate(times):
        while times[first] <= at - timeout:
            first += 1
        most = max(most, index - first + 1)
    return min(most, MOST_USERS)


def report_folder(model: str) -> Path:
    """A new folder for locust's own reports, in the current one where that can be."""
    name = f"{model}-{datetime.now().strftime('%Y%m%d-%H%M%S-%f')}"
    try:
        folder = Path(REPORTS) / name
        folder.mkdir(parents=True)
    except OSError:
        return Path(mkdtemp(prefix=f"{REPORTS}-"))
    return folder


def read_records(path: Path) -> list[Asked]:
    """The requests that users wrote down; a last line that is not whole is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [_asked(json.loads(line)) for line in lines if line.endswith("\n")]


def _asked(record: dict[str, Any]) -> Asked:
    pieces = tuple(Piece(read, written, cut, reason) for read, written, cut, reason in record.pop("pieces"))
    kind = record.pop("error")
    error = None if kind is None else (str(kind[0]), str(kind[1]))
    return Asked(times=tuple(record.pop("times")), pieces=pieces, error=error, **record)


def _has_reports(words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in ("--csv", "--html") for word in words)


def _with_reports(made: Generated, reports: Path | None) -> Generated:
    from dataclasses import replace

    return made if reports is None else replace(made, notes=(*made.notes, f"locust's own reports: {reports}"))


def _check_stable(limits: Limits) -> None:
    if limits.stable is not None:
        raise UsageError("locust does not know when a load is stable.", "Leave --stable out, or use another --tool.")


def _counts(target: Target, asks: RequestSet, stream: bool) -> bool:
    """Whether answers tell their tokens. Raises UsageError for requests that the model does not take."""
    model = target.model + names.STREAM_SUFFIX if stream else target.model
    with Client(target.grpc_url, timeout=METADATA_SECONDS, retries=0) as client:
        metadata = client.metadata(model)
    for ask in asks.items:
        check_values(metadata, {name: list(values) for name, values in ask.inputs.items()})
    return any(tensor.name == names.OUTPUT_TOKENS for tensor in metadata.outputs)
