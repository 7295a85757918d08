"""`python -m bench.docs [ROOT]`: README's performance section and docs/perf-scenarios.md, from bench/results."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.command import report, write_page
from bench.figures import Figures, load, number, table
from bench.scenarios import HFX, PACE, SCENARIOS
from hfx.errors import HfxError

RESULTS, README, PAGE = Path("bench/results/scenarios.jsonl"), Path("README.md"), Path("docs/perf-scenarios.md")
PICTURES, DRAWN, WIDTH = Path("docs/img"), ("mlserver-burst", "classify"), 360
NONE = "No result is in bench/results yet: `make bench` measures, `make bench-docs` writes this section.\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both sections and the pictures below the folder that is given, the current one without it."""
    words = sys.argv[1:] if arguments is None else arguments
    root = Path(words[0]) if words else Path()
    try:
        results = load(root / RESULTS)
        for path in (root / PICTURES).glob("perf-*.svg"):
            path.unlink()
        for name in (name for name in DRAWN if name in results):
            (root / picture(name)).write_text(drawn(results[name]), encoding="utf-8")
        write_page(root / README, readme_section(results), "performance")
        page = report(SCENARIOS, results)
        write_page(root / PAGE, page or NONE, "performance")
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def picture(name: str) -> Path:
    """Where the picture of a scenario is."""
    return PICTURES / f"perf-{name}.svg"


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
    image = [f'<img src="{picture(DRAWN[0])}" alt="{DRAWN[0]}, as in the table">\n'] if DRAWN[0] in results else []
    return "\n".join([_wrapped(text), "", body, *image, _wrapped(verdict)])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def drawn(figures: Figures) -> str:
    """Bars of requests a second by way, a panel for each case, readable on light and dark pages."""
    import vl_convert

    rows = [
        {"case": case, "way": way, "requests a second": figures.median(way, case, PACE)}
        for case in figures.cases(PACE)
        for way in figures.ways(case, PACE)
    ]
    grey = {"labelColor": "#808890", "titleColor": "#808890"}
    colour = {"condition": {"test": f"datum.way == '{HFX}'", "value": "#2a7de1"}, "value": "#9aa5b1"}
    chart = {
        "data": {"values": rows},
        "facet": {"field": "case", "type": "nominal", "sort": None, "title": None},
        "columns": 2,
        "spec": {
            "width": WIDTH,
            "mark": "bar",
            "encoding": {
                "x": {"field": "requests a second", "type": "quantitative"},
                "y": {"field": "way", "type": "nominal", "sort": None, "title": None},
                "color": colour,
            },
        },
        "resolve": {"scale": {"x": "independent"}},
        "config": {"background": "transparent", "axis": grey, "header": grey},
    }
    return str(vl_convert.vegalite_to_svg(chart))


if __name__ == "__main__":
    sys.exit(main())
