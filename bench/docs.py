"""`python -m bench.docs`: README's performance section and docs/perf-scenarios.md, from bench/results."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from bench.command import report, write_page
from bench.figures import Figures, load, number, table
from bench.scenarios import HFX, PACE, SCENARIOS
from hfx.errors import HfxError

RESULTS, README, PAGE = Path("bench/results/scenarios.jsonl"), Path("README.md"), Path("docs/perf-scenarios.md")
NONE = "No result is in bench/results yet: `make bench` measures, `make bench-docs` writes this section.\n"


def main() -> int:
    """Write both sections, in the current folder."""
    try:
        results = load(RESULTS)
        write_page(README, readme_section(results), "performance")
        write_page(PAGE, report(SCENARIOS, results) or NONE, "performance")
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def readme_section(results: Mapping[str, Figures]) -> str:
    """Requests a second of hfx, and how many times those of each peer."""
    if not results:
        return NONE
    peers = list(dict.fromkeys(way for each in results.values() for way in each.ways() if not way.startswith("hfx")))
    rows = [
        (name, case, f"{number(figures.median(HFX, case, PACE))}/s",
         *(number(figures.ratio((HFX, case, PACE), (peer, case, PACE))) for peer in peers))
        for name, figures in results.items() for case in figures.cases(PACE)
    ]  # fmt: skip
    goals = [goal.judge(results[name]) for name in results for goal in SCENARIOS[name].goals]
    missed = "; ".join(f"{words} ({number(value)})" for words, value, met in goals if met is False)
    stamp = next(iter(results.values())).stamp
    text = (
        f"`make bench`, {stamp['processor']}, {stamp['cores']} cores. Full-size shapes with random weights behind a "
        "real Triton; peers run the same weights in process (MLServer: as a server), in turn with hfx. Ratios are "
        "medians of the ratios within a round, and are only taken where all wrote the same number of tokens. "
        "`make bench-docs` writes this section; all figures are in [docs/perf-scenarios.md](docs/perf-scenarios.md)."
    )
    verdict = f"{sum(met is True for *_, met in goals)} of {len(goals)} goals are met. Missed: {missed or 'none'}."
    columns = ("scenario", "load", "hfx int8, requests", *(f"hfx / {peer}" for peer in peers))
    body = table("", columns, rows).split("\n", 2)[2]
    return "\n".join([_wrapped(text), "", body, _wrapped(verdict)])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
