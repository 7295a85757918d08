"""Colours and the Vega-Lite configuration made of them: light and dark for pictures, CSS variables for the page.

The category colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), which people with any colour vision can
tell apart; dashes and shapes tell the same apart without colour. What is drawn is no matter of this file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

FONT = "sans-serif"
# As many as have no common divisor with the colours: the eighth way has a colour again, but not with the same shape.
DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [12, 4])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


@dataclass(frozen=True)
class Colours:
    """What a chart is drawn with: ink for words, faint for lines behind, and seven colours that differ."""

    paper: str
    ink: str
    soft: str
    faint: str
    c1: str
    c2: str
    c3: str
    c4: str
    c5: str
    c6: str
    c7: str

    @property
    def category(self) -> list[str]:
        """The colours of ways, phases and the like, in order."""
        return [self.c1, self.c2, self.c3, self.c4, self.c5, self.c6, self.c7]


LIGHT = Colours(
    "#ffffff", "#1b1f24", "#57606a", "#d8dee4",
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
)  # fmt: skip
DARK = Colours(
    "#14171b", "#e8eaed", "#a9b1ba", "#363c44",
    "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#ffffff",
)  # fmt: skip
PAGE = Colours(**{field.name: f"var(--{field.name})" for field in fields(Colours)})


def variables(colours: Colours) -> str:
    """COLOURS as the CSS variables that PAGE names."""
    return " ".join(f"--{field.name}: {getattr(colours, field.name)};" for field in fields(Colours))


def config(colours: Colours) -> dict[str, Any]:
    """The configuration of all charts in COLOURS."""
    words = {"labelColor": colours.ink, "titleColor": colours.soft, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None},
        "range": {"category": colours.category, "symbol": [*SHAPES]},
        "title": {"color": colours.ink, "anchor": "start", "frame": "group", "fontSize": 14, "offset": 8},
        "axis": {
            **words, "titleFontWeight": "normal", "gridColor": colours.faint, "domainColor": colours.soft,
            "tickColor": colours.soft, "labelLimit": 200, "titleLimit": 270, "labelOverlap": True, "grid": False,
        },
        "legend": {
            **words, "title": None, "orient": "top", "direction": "horizontal", "labelLimit": 230, "symbolSize": 90,
            "symbolStrokeWidth": 2, "symbolOpacity": 1, "columnPadding": 16,
            "layout": {"top": {"direction": "vertical", "anchor": "start"}},
        },
        "text": {"color": colours.ink, "fontSize": 12, "font": FONT},
        "line": {"strokeWidth": 2},
        "point": {"size": 70, "filled": True, "opacity": 1},
        "style": {"halo": {"stroke": colours.paper, "strokeWidth": 4, "strokeJoin": "round"}},
        "rule": {"color": colours.soft, "strokeWidth": 1},
    }  # fmt: skip
