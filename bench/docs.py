"""`python -m bench.docs`: docs/benchmarks.md with its picture, and docs/perf-scenarios.md, from bench/results."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from bench.command import report, write_page
from bench.docs_chart import peers_chart
from bench.figures import Figures, load, number, table
from bench.scenarios import HFX, PACE, SCENARIOS
from hfx.errors import HfxError

RESULTS, PICTURE = Path("bench/results/scenarios.jsonl"), Path("docs/images/peers.svg")
SUMMARY, PAGE = Path("docs/benchmarks.md"), Path("docs/perf-scenarios.md")
NONE = "No result is in bench/results yet: `make bench` measures, `make bench-docs` writes this section.\n"


def main() -> int:
    """Write both sections and the picture, in the current folder."""
    try:
        results = load(RESULTS)
        write_page(SUMMARY, summary(results), "performance")
        write_page(PAGE, report(SCENARIOS, results) or NONE, "performance")
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(peers_chart(results, HFX, PACE), encoding="utf-8")
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def summary(results: Mapping[str, Figures]) -> str:
    """Requests a second of hfx, how many times those of each peer, and the goals that are missed."""
    if not results:
        return NONE
    peers = list(dict.fromkeys(way for each in results.values() for way in each.ways() if not way.startswith("hfx")))
    rows = [
        (name, case, f"{number(figures.median(HFX, case, PACE))}/s",
         *(number(figures.ratio((HFX, case, PACE), (peer, case, PACE))) for peer in peers))
        for name, figures in results.items() for case in figures.cases(PACE)
    ]  # fmt: skip
    goals = [goal.judge(results[name]) for name in results for goal in SCENARIOS[name].goals]
    missed = [f"- {words}: {number(value)}" for words, value, met in goals if met is False]
    stamp = next(iter(results.values())).stamp
    text = (
        f"`make bench`, {stamp['processor']}, {stamp['cores']} cores; `make bench-docs` writes this section. Above 1, "
        "hfx answers more requests a second than the peer. Every figure is in [perf-scenarios.md](perf-scenarios.md)."
    )
    columns = ("scenario", "load", "hfx int8, requests", *(f"hfx / {peer}" for peer in peers))
    body = table("", columns, rows).split("\n", 2)[2]
    verdict = f"{sum(met is True for *_, met in goals)} of {len(goals)} goals are met."
    return "\n".join([_wrapped(text), "", body, *([f"{verdict} Missed:", "", *missed] if missed else [verdict])])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
