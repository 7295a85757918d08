"""The picture of hfx beside its peers: a point for each peer and load, on a logarithmic scale with a line at 1."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt

from bench.figures import Figures
from hfx.perf.report.charts import LIGHT, Chart, colour, data, distinct, svg

ROW = 22  # pixels
LABELS = 190  # pixels: fonts of browsers are wider than those that the layout is measured with
TICKS = [0.5, 1, 2, 5, 10]
LEAST, MOST = 0.4, 12.0


def peers_chart(results: Mapping[str, Figures], hfx: str, figure: str) -> str:
    """An SVG of the ratios of `hfx` to each peer by `figure`, readable on light and dark pages."""
    rows = [
        {"load": f"{name}: {case}", "peer": peer, "ratio": ratio}
        for name, figures in results.items()
        for case in figures.cases(figure)
        for peer in figures.ways(case, figure)
        if not peer.startswith("hfx") and (ratio := figures.ratio((hfx, case, figure), (peer, case, figure)))
    ]
    loads, peers, ratios = distinct(rows, "load"), distinct(rows, "peer"), [row["ratio"] for row in rows]
    scale = alt.Scale(type="log", domain=[min([LEAST, *ratios]), max([MOST, *ratios])], nice=False)
    axis = alt.Axis(values=TICKS, grid=True, format="~g")
    x = alt.X("ratio:Q", title="requests/s of hfx, relative to the peer", scale=scale, axis=axis)
    y = alt.Y("load:N", title=None, sort=loads, axis=alt.Axis(grid=True, labelLimit=260, minExtent=LABELS))
    columns = alt.Legend(columns=3, columnPadding=40)
    shape = alt.Shape("peer:N", scale=alt.Scale(domain=peers), legend=columns)
    points = data(rows).mark_point().encode(x, y, colour(rows, "peer").legend(columns), shape)
    line = alt.Chart(alt.Data(values=[{"ratio": 1}])).mark_rule(strokeDash=[4, 4]).encode(x="ratio:Q")
    spec = alt.layer(line, points).properties(height=ROW * len(loads)).to_dict()
    spec.pop("$schema", None)
    description = "hfx in int8 behind a real Triton, beside the same weights in other libraries"
    chart = Chart("peers", "Above 1 hfx is faster, below 1 the peer", description, {**spec, "background": "#ffffff"})
    return svg(chart, LIGHT)
