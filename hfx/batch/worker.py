"""A worker process: opens the model, scores chunks, and reports on its standard output.

Input and output are JSON lines. The input is a Start, followed by Work until the end of the input. The output reports
`opened`, `chunk` (a chunk has begun), `row` (a row has begun, when rows are scored one by one), `done` (a chunk is
done), `finished` (a Work is done), and `error`, after which the process ends. The output of libraries that print to the
standard output is redirected to the standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from hfx import errors
from hfx.answering import Model, Request
from hfx.batch.folder import Folder
from hfx.batch.job import model_record
from hfx.batch.models import open_model
from hfx.batch.options import RunOptions
from hfx.batch.plan import PlannedJob
from hfx.batch.rows import labels_of, probe
from hfx.batch.scored_parts import score_chunks
from hfx.errors import HfxError, ServerError
from hfx.extras import missing_package

COMMAND = (sys.executable, "-P", "-m", "hfx.batch.worker")
ENGINE_ENDED = 70  # exit code after an error of the model in this process; another worker then takes over


@dataclass(frozen=True)
class Start:
    """The model to open, with the RunOptions as JSON. With `probe`, a short text first checks the `settings`."""

    name: str
    options: Mapping[str, Any]
    threads: int | None
    settings: Request
    probe: bool


@dataclass(frozen=True)
class Work:
    """Chunks to score; chunks in `alone` are scored row by row.

    Rows in `killers` become error rows without being scored.
    """

    folder: str
    chunks: tuple[int, ...]
    alone: tuple[int, ...] = ()
    killers: tuple[int, ...] = ()


def main() -> None:
    """Run until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner ends its workers
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    start = Start(**json.loads(sys.stdin.readline()))
    options = RunOptions.of(start.options)
    try:
        _serve(start, options, reports)
    except ServerError as error:
        if options.in_process:
            print(error, file=sys.stderr, flush=True)
            os._exit(ENGINE_ENDED)
        _report(reports, error=described(error))
    except HfxError as error:
        _report(reports, error=described(error))
    except Exception as error:
        import traceback

        lacking = missing_package(error) if isinstance(error, ModuleNotFoundError) else None
        if lacking is None:
            traceback.print_exc()
        _report(reports, error=described(lacking or HfxError(f"Unexpected: {type(error).__name__}: {error}")))
    os._exit(0)  # threads that wait for a server must not hold the process


def _serve(start: Start, options: RunOptions, reports: TextIO) -> None:
    began = time.monotonic()
    with open_model(start.name, options.place(start.threads), options.persistence) as model:
        seconds = time.monotonic() - began
        if start.probe or not options.in_process:  # `Servers` sends a request that was answered once to test a server
            probe(model, start.settings)
        record = model_record(model, labels_of(model, start.settings))
        _report(reports, opened={"model": asdict(record), "seconds": seconds})
        while line := sys.stdin.readline():
            _score(model, Work(**json.loads(line)), options, reports)
            _report(reports, finished=True)


def _score(model: Model, work: Work, options: RunOptions, reports: TextIO) -> None:
    planned = PlannedJob.read(Folder(Path(work.folder)))
    for numbers, alone in ((work.chunks, False), (work.alone, True)):
        for done in score_chunks(
            planned,
            numbers,
            model,
            at_once=options.max_concurrency,
            on_begin=lambda kind, number: _report(reports, **{kind: number}),
            killers=work.killers,
            alone=alone,
        ):
            _report(reports, done=asdict(done))


def _report(reports: TextIO, **message: Any) -> None:
    reports.write(json.dumps(message) + "\n")
    reports.flush()


def described(error: HfxError) -> dict[str, str]:
    """Return an error as plain values, for `reported`."""
    known = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return {"type": known.__name__, "message": error.message, "fix": error.fix}


def reported(error: Mapping[str, str]) -> HfxError:
    """Return the error that `described` turned into plain values."""
    kind: type[HfxError] = getattr(errors, error["type"], HfxError)
    return kind(error["message"], error["fix"])


if __name__ == "__main__":
    main()
