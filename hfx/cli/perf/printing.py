"""Shows a load while it runs, and writes and prints the result of a command that measures.

On a terminal, a running load is a row of a table with a sparkline; elsewhere, it is a note.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.cli.output import Reporter, visible

if TYPE_CHECKING:
    from hfx.perf.loadgen.log import Progress, Watch
    from hfx.perf.report.tables import Table
    from hfx.perf.results import Result

COLUMNS = ("load", "", "time", "sent", "failed", "in flight", "requests/s", "p50 ms", "p99 ms")
STATES = {"warmup": "warming up", "counted": "measuring", "draining": "ending"}
MOST = 12  # rows: a terminal crops the table at the bottom, where the latest load is
LINE = 30  # values in a sparkline
LOOK_SECONDS = 0.25

Show = Callable[[str], "Watch"]


@dataclass
class Row:
    """One load: its last progress, its throughput over time, and whether another load has begun since."""

    title: str
    done: bool = False
    last: Progress | None = None
    line: list[float | None] = field(default_factory=list)
    looked: float = 0.0

    def update(self, progress: Progress) -> None:
        """Store new progress, and a throughput for the sparkline every LOOK_SECONDS."""
        self.last, now = progress, time.monotonic()
        if progress.phase == "counted" and progress.succeeded and now - self.looked >= LOOK_SECONDS:
            self.looked = now
            self.line.append(progress.throughput)

    def cells(self) -> list[str]:
        """Return the cells of the load's row in the table."""
        from hfx.perf.report.figures import number, sparkline

        last = self.last
        if last is None:
            return [self.title, "starting", *[""] * len(COLUMNS[1:])]
        state = "done" if self.done else STATES[last.phase]
        counts = (f"{last.elapsed:.0f} s", f"{last.sent:,}", f"{last.failed:,}", str(last.in_flight))
        figures = map(number, (last.throughput, last.p50, last.p99))
        return [visible(self.title), state, *counts, *figures, sparkline(self.line, LINE)]


@contextmanager
def live(report: Reporter) -> Iterator[Show]:
    """Yield a function that begins a load with a given title; it returns a function that takes the load's progress."""
    if not sys.stderr.isatty():
        yield lambda title: _note(report, title)
        return
    from rich.console import Console
    from rich.live import Live

    rows: list[Row] = []
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as screen:

        def begin(title: str) -> Watch:
            for row in rows:
                row.done = True
            rows.append(row := Row(title))

            def update(progress: Progress) -> None:
                row.update(progress)
                screen.update(_table(rows), refresh=True)

            screen.update(_table(rows), refresh=True)
            return update

        yield begin


def _note(report: Reporter, title: str) -> Watch:
    """Return a function that notes the title at the first progress: before that, the load may still be refused."""
    noted = False

    def update(progress: Progress) -> None:
        nonlocal noted
        if not noted:
            report.note(f"{title} …")
        noted = True

    return update


def _table(rows: list[Row]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in COLUMNS[:2] else "right", no_wrap=True)
    table.add_column("requests/s over time", no_wrap=True)
    for row in rows[-MOST:]:
        table.add_row(*row.cells())
    return table


# The end


def command_line() -> str:
    """Return the command as it was typed, for the result file."""
    return shlex.join(["hfx", *sys.argv[1:]])


def finish(
    result: Result,
    output: Path | None,
    report: Reporter,
    head: Sequence[str],
    tables: Iterable[Table],
    end: Sequence[str] = (),
) -> None:
    """Write the result to `output` and print it: `head`, each table, `end`, with empty lines between."""
    from hfx.perf.report.tables import to_lines
    from hfx.perf.results import to_json, write_result

    if output:
        write_result(result, output)
    parts = [
        head,
        *map(to_lines, tables),
        end,
        [f"Written to {output}. Next: hfx perf report {output}"] if output else [],
    ]
    lines = [line for part in parts if part for line in ("", *part)]
    report.result(json.loads(to_json(result)), lines[1:])
