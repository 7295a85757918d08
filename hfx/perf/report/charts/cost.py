"""What the same work costs by the ways of a comparison, side by side."""

from __future__ import annotations

from hfx.perf.report.charts.chart import Chart
from hfx.perf.report.charts.side_by_side import side_by_side
from hfx.perf.report.figures import FIGURES
from hfx.perf.results.schema import Result


def chart(result: Result) -> Chart | None:
    """A million tokens where texts are written, 1,000 requests else; None without two prices."""
    costs = [run.cost for run in result.runs if run.cost]
    tokens = any(cost.per_1m_tokens is not None for cost in costs)
    currency = next((cost.currency for cost in costs if cost.currency), "")
    axis = f"{currency} {'per 1M tokens' if tokens else 'per 1k requests'} (less is better)".strip()
    return side_by_side(result, FIGURES["cost 1m" if tokens else "cost 1k"], "cost", "Cost, side by side", axis)
