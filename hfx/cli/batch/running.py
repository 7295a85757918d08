"""The options and the progress display that `hfx batch run` and `resume` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hfx.cli.commands import given
from hfx.cli.connection import Header, TlsCa, TokenFile
from hfx.cli.output import counted
from hfx.errors import HfxError, Interrupted, UsageError
from hfx.options import option

if TYPE_CHECKING:
    from hfx.answering import Request
    from hfx.batch.folder import Folder
    from hfx.batch.job import Job
    from hfx.batch.options import RunOptions
    from hfx.batch.plan import PlannedJob, Shard
    from hfx.batch.progress import ChunkRunner
    from hfx.cli.output import Reporter

SECONDS = 10.0  # between two lines of progress, if there is no terminal


@dataclass(frozen=True)
class PlaceOptions:
    """The options that say where the model is."""

    PANEL: ClassVar[str] = "Model"

    repository: Path | None = option(
        None, "Model repository, to run the model in this command. Default: model_repository.", metavar="DIR"
    )
    device: Literal["cpu", "gpu"] | None = option(None, "Device to run the model on in this command. Default: cpu.")
    url: list[str] | None = option(
        None, "Server to use instead. Repeatable: each request goes to the least loaded server.", metavar="URL"
    )
    header: Header = None
    token_file: TokenFile = None
    tls_ca: TlsCa = None


@dataclass(frozen=True)
class WorkOptions:
    """How the work is done; answers do not depend on it."""

    PANEL: ClassVar[str] = "Work"

    workers: int | None = option(None, "Processes on this machine. Default: 1.", min=1, max=1024)
    shard: str | None = option(
        None,
        "Score only share I of N of the chunks (0/N is N/N). env: take both from the launcher's variables.",
        metavar="I/N|env",
    )
    max_concurrency: int | None = option(
        None, "Rows in flight at a time. Default: enough to keep the model busy.", min=1
    )
    retries: int | None = option(
        None, "Retries of a row that fails while the server answers others. Default: 3.", min=0
    )
    patience: str | None = option(
        None, "How long a server may go without answering: 30s, 5m, 2h. Default: 5m.", metavar="5m"
    )
    row_timeout: float | None = option(
        None, "Time limit for a row, after which it counts as failed. Default: no limit.", min=0.001, metavar="SECONDS"
    )
    error_threshold: str | None = option(
        None, "Most error rows allowed; with more, the exit code is 6. Default: -1, any number.", metavar="N|P%|-1"
    )
    mixed_processors: bool | None = option(
        None,
        "Continue on another processor, or with other versions, although last digits of scores may differ.",
        "--mixed-processors",
    )


@dataclass(frozen=True)
class EngineOptions:
    """The options that say which processes do the work."""

    PANEL: ClassVar[str] = "Work"

    engine: Literal["local", "spark"] = option(
        "local", "Run in processes of this machine, or as Spark tasks on shared storage."
    )
    master: str = option("", "Spark master, such as spark://HOST:7077. Default: this machine.", metavar="URL")


def run_options(place: PlaceOptions, work: WorkOptions, before: RunOptions) -> RunOptions:
    """Return the options `before`, changed by the options that were given. Raises UsageError for an invalid value."""
    if place.url and (place.repository or place.device):
        raise UsageError("--url and --repository exclude each other.", "Choose where the model runs.")
    changes = {name: value for name, value in given(work).items() if name not in ("shard", "patience")}
    if work.patience is not None:
        from hfx.perf.load import parse_seconds

        changes["patience"] = parse_seconds(work.patience, "--patience")
    if place.repository or place.device:
        changes |= {"urls": ()}
    if place.repository:
        changes["repository"] = str(place.repository.absolute())
    if place.device:
        changes["device"] = place.device
    if place.url:
        changes |= {"urls": tuple(place.url)}
    options = replace(before, **changes)
    options.threshold  # noqa: B018 - raises UsageError for an invalid value
    return replace(options, client=_client(place, options.urls))


def _client(place: PlaceOptions, urls: tuple[str, ...]) -> dict[str, Any]:
    """Return keyword arguments of the client, as plain values."""
    from hfx.cli.connection import Connection, headers_of, token_of

    connection = Connection(header=place.header, token_file=place.token_file, tls_ca=place.tls_ca)
    if not urls:
        if given(connection):
            raise UsageError("--header, --token-file and --tls-ca are for servers.", "Give --url, or leave them out.")
        return {}
    ca = {"tls_ca": str(place.tls_ca.absolute())} if place.tls_ca else {}
    return {"headers": headers_of(connection), "token": token_of(connection), **ca}


def opened_runner(
    engine: EngineOptions, name: str, options: RunOptions, settings: Request, probe: bool = False
) -> AbstractContextManager[ChunkRunner]:
    """Return the runner that `engine` names. Raises UsageError for --master without Spark."""
    if engine.engine == "spark":
        from hfx.batch.spark_runner import spark_runner

        return spark_runner(name, options, settings, probe, engine.master)
    if engine.master:
        raise UsageError("--master is Spark's.", "Add --engine spark, or leave --master out.")
    from hfx.batch.local import runner

    return runner(name, options, settings, probe)


@contextmanager
def working(folder: Folder, shard: Shard | None, title: str, report: Reporter) -> Iterator[Callable[[str], None]]:
    """Hold the job's lock, yield a function that shows progress, and log the error of a failed run."""
    with folder.locked(shared=shard is not None) as has_locks:
        if not has_locks:
            report.warn(f"The storage of {folder.path} has no file locks: start no other run of this job meanwhile.")
        try:
            with report.progress(title) as show:
                yield show
        except HfxError as error:
            folder.log({"event": "failed", "error": error.message})
            if shard is None:
                folder.discard_unplanned()
            raise
        except KeyboardInterrupt:
            if shard is None and folder.discard_unplanned():
                raise
            raise Interrupted("Interrupted.", f"`hfx batch resume {folder.path}` continues it.") from None


class Watcher:
    """Shows the progress of a run of the chunks of `shard`, from the run's events."""

    def __init__(self, planned: PlannedJob, shard: Shard | None, show: Callable[[str], None]) -> None:
        from hfx.batch.plan import count_rows

        self._rows = count_rows(planned.share(shard))
        self._done = self._first = self._rows - count_rows(planned.missing(shard))
        self._show = show
        self._began = time.monotonic()
        self._errors = 0
        self._shown = -SECONDS

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show an event of a runner."""
        if event["event"] == "death":
            self._show(f"A worker ended ({event['how']}); another one replaces it.")
        if event["event"] == "chunk":
            self._done += event["rows"]
            self._errors += sum(event["errors"].values())
            self._say()

    def _say(self) -> None:
        passed = time.monotonic() - self._began
        if time.monotonic() - self._shown < SECONDS and self._done < self._rows:
            return
        self._shown = time.monotonic()
        rate = (self._done - self._first) / max(passed, 0.001)
        left = (self._rows - self._done) / rate if rate else 0
        errors = f", {counted(self._errors, 'error')}" if self._errors else ""
        self._show(f"{self._done} of {self._rows} rows, {rate:.1f} rows/s, {duration(left)} left{errors}")


def duration(left: float) -> str:
    """Return seconds as [hours:]minutes:seconds."""
    minutes, rest = divmod(round(left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def warn_of_unknown(job: Job, report: Reporter) -> None:
    """Warn if servers don't report the hash of their model."""
    if not job.model.files:
        report.warn(
            f"The server does not report the files of {job.model.name}: if it was changed meanwhile, rows may be of "
            "different models. Export the model again to detect this."
        )


def report_end(folder: Folder, summary: Mapping[str, Any] | None, shard: Shard | None, report: Reporter) -> None:
    """Print how a run ended."""
    if summary is None:
        value = {"folder": str(folder.path), "status": "shard completed", "shard": str(shard)}
        report.result(value, f"Shard {shard} is done; other shards have to finish before the output is published.")
        return
    value = {"folder": str(folder.path), **summary}
    where = folder.path / summary["output"] if "output" in summary else folder.parts
    errors = "".join(f"\n{count:>8}  {kind}" for kind, count in summary["errors_by_kind"].items())
    rows, cut = counted(summary["rows"], "row"), counted(summary["truncated_rows"], "truncated text")
    report.result(value, f"{where}: {rows}, {counted(summary['errors'], 'error')}, {cut}{errors}")
