"""How long each test file takes, compared with the committed table `tests/durations.tsv`: a plugin of pytest.

`--compare-durations` prints the largest changes at the end of a run, and `--write-durations` writes the table anew.
Machines differ in speed, so the recorded times are scaled first: by the ratio of the total times of the files that are
in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.selection import git

TABLE = Path(__file__).parents[2] / "durations.tsv"
SHOWN = 20
SHORTEST = 1.0  # seconds: shorter files are not recorded


class Durations:
    """Adds up the seconds of each file: its tests, with their fixtures."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test; with several workers, their controller gets all reports."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
    ) -> None:
        """Print the largest changes, or write the table."""
        seconds = {file: each for file, each in sorted(self._seconds.items()) if each >= SHORTEST}
        if config.getoption("--write-durations"):
            head = f"# {git('rev-parse', 'HEAD')}\n"
            TABLE.write_text(head + "".join(f"{each:.0f}\t{file}\n" for file, each in seconds.items()))
            return
        recorded = read_table(TABLE.read_text())
        terminalreporter.section("durations")
        for line in changes(seconds, recorded):
            terminalreporter.write_line(line)


def read_table(text: str) -> dict[str, float]:
    """Return the recorded seconds of each file; the first line is the commit at which they were recorded."""
    rows = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    return {file: float(seconds) for seconds, file in rows}


def changes(seconds: Mapping[str, float], recorded: Mapping[str, float]) -> list[str]:
    """Lines about the largest changes of `seconds` from what is `recorded`, which is scaled to this machine."""
    common = seconds.keys() & recorded.keys()
    before = sum(recorded[file] for file in common)
    scale = sum(seconds[file] for file in common) / before if before else 1.0
    grown = {file: each - scale * recorded.get(file, 0.0) for file, each in seconds.items()}
    grown |= {file: -scale * each for file, each in recorded.items() if file not in seconds}
    largest = sorted(grown.items(), key=lambda change: -abs(change[1]))[:SHOWN]
    head = f"{sum(seconds.values()):.0f} s of tests; this machine takes {scale:.2f} x the time of tests/durations.tsv."
    return [head, *(f"{change:+7.1f} s  {file}" for file, change in largest if abs(change) >= SHORTEST)]
