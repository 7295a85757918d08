"""Charts as SVG files, for a README: the same text for the same chart, wherever it is drawn.

Drawn by vl-convert without a browser, with the fonts that it carries.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from hfx.perf.report.charts.chart import Chart
from hfx.perf.report.theme import Colours, config

WIDTH = 720
IDENTIFIER = re.compile(r'(?<=[" #])(clip|gradient_)(\d+)')


def svg(chart: Chart, colours: Colours, width: int = WIDTH) -> str:
    """CHART as SVG text, WIDTH pixels wide. Its title and words are in it for readers of screens."""
    import altair as alt
    import vl_convert

    spec: dict[str, Any] = copy.deepcopy(dict(chart.spec))
    spec |= {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}, "title": chart.title}
    drawn = vl_convert.vegalite_to_svg(spec, vl_version=version(alt.SCHEMA_VERSION), config=config(colours))
    return _numbered_anew(drawn) + "\n"


def version(schema: str) -> str:
    """Vega-Lite's version as vl-convert names it: "v6.1.0" -> "6.1"."""
    return ".".join(schema.removeprefix("v").split(".")[:2])


def _numbered_anew(text: str) -> str:
    """TEXT with its clip paths counted from 0: Vega counts on from one picture to the next."""
    found: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return found.setdefault(match.group(), f"{match.group(1)}{len(found)}")

    return IDENTIFIER.sub(name, text)
