"""`python -m bench.docs`: docs/benchmarks.md with its picture, and docs/perf-scenarios.md, from bench/results."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.command import write_page
from bench.docs_chart import peers_chart
from bench.figures import Figures, load, machine_line, number, table
from bench.scenarios import HFX, PACE, SCENARIOS
from hfx.errors import HfxError

RESULTS, PICTURE = Path("bench/results/scenarios.jsonl"), Path("docs/images/peers.svg")
SUMMARY, PAGE = Path("docs/benchmarks.md"), Path("docs/perf-scenarios.md")
LEFT_OUT = (PACE, "rows a step", "of the limit")  # of the page's tables
NONE = "No result is in bench/results yet: `make bench` measures, `make bench-docs` writes this section.\n"


def main() -> int:
    """Write both sections and the picture, in the current folder."""
    try:
        results = load(RESULTS)
        write_page(SUMMARY, summary(results), "performance")
        write_page(PAGE, scenarios(results), "performance")
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(peers_chart(results, HFX, PACE), encoding="utf-8")
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def summary(results: Mapping[str, Figures]) -> str:
    """How many goals are met, and those that are missed."""
    if not results:
        return NONE
    goals = [goal.judge(results[name]) for name in results for goal in SCENARIOS[name].goals]
    missed = [f"- {words}: {number(value)}" for words, value, met in goals if met is False]
    stamp = next(iter(results.values())).stamp
    text = (
        f"`make bench`, {stamp['processor']}, {stamp['cores']} cores; `make bench-docs` writes this section. "
        "Medians and ratios of every load: [Scenarios](perf-scenarios.md)."
    )
    verdict = f"{sum(met is True for *_, met in goals)} of {len(goals)} goals are met."
    return "\n".join([_wrapped(text), "", *([f"{verdict} Missed:", "", *missed] if missed else [verdict])])


def scenarios(results: Mapping[str, Figures]) -> str:
    """The medians of every scenario, a table each."""
    if not results:
        return NONE
    parts = [machine_line(next(iter(results.values()))), ""]
    for name, figures in results.items():
        work = SCENARIOS[name]
        shown = [name for name in work.columns if name not in LEFT_OUT and figures.cases(name)]
        ratio = (f"{HFX} is x",) if len(figures.ways()) > 1 else ()
        keys = [(case, way) for case in figures.cases() for way in figures.ways(case)]
        rows = [_medians(figures, case, way, shown, bool(ratio)) for case, way in keys]
        rows = [("" if row[0] == before[0] else row[0], *row[1:]) for before, row in itertools.pairwise([("",), *rows])]
        body = table("", ("load", "candidate", *shown, *ratio), rows).split("\n", 2)[2]
        notes = [f"- {subject}: {note}" for subject, note in figures.notes.items()]
        parts += [f"## {name}", "", f"{work.title}.", "", body, *notes]
    return "\n".join(parts)


def _medians(figures: Figures, case: str, way: str, columns: Sequence[str], ratio: bool) -> tuple[str, ...]:
    """A row of a scenario's table, and how many times as fast as `way` hfx is."""
    times = (number(figures.ratio((HFX, case, PACE), (way, case, PACE))),) if ratio else ()
    return (case, way, *(number(figures.median(way, case, name)) for name in columns), *times)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
