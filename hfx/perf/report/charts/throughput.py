"""Throughput of the ways of a comparison (CPU and GPU, precisions, settings) side by side."""

from __future__ import annotations

from hfx.perf.report.charts.chart import Chart
from hfx.perf.report.charts.side_by_side import side_by_side
from hfx.perf.report.figures import main
from hfx.perf.results.schema import Result


def chart(result: Result) -> Chart | None:
    """Tokens a second where texts are written, requests a second else; None with fewer than two ways."""
    figure = main(result.runs)
    return side_by_side(result, figure, "throughput", "Throughput, side by side", f"{figure.title} (more is better)")
