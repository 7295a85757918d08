"""How the commands that measure end: the result file, its tables and what was called."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hfx.cli.output import Reporter

if TYPE_CHECKING:
    from hfx.perf.report.tables import Table
    from hfx.perf.results import Result


def command_line() -> str:
    """The command as it was typed, for the result file."""
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
    parts = [head, *map(to_lines, tables), end, [f"Written to {output}."] if output else []]
    lines = [line for part in parts if part for line in ("", *part)]
    report.result(json.loads(to_json(result)), lines[1:])
