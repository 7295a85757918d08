"""Results as one HTML file that asks nobody for anything: text, tables, plots, and the results themselves.

The runtime of the plots (Vega, inline) is about 900 kB. A content security policy allows exactly the two scripts of
this page by their hashes, so a name in a result can't become one. What is shown of a result is tables.py's and charts'.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import hfx
from hfx.perf.compare.summary import best_table
from hfx.perf.report.charts import charts
from hfx.perf.report.charts.chart import Chart
from hfx.perf.report.comparisons import comparison_tables
from hfx.perf.report.limits import roofline_table
from hfx.perf.report.numbers import size
from hfx.perf.report.pictures import version
from hfx.perf.report.table import Table
from hfx.perf.report.tables import (
    cost_table,
    details_table,
    goals,
    goals_table,
    machine_table,
    published_table,
    run_table,
    server_table,
    steps_table,
    warnings,
)
from hfx.perf.report.theme import DARK, LIGHT, PAGE, config, variables
from hfx.perf.report.trials import trials_table
from hfx.perf.results import Result, to_json

TEMPLATE = Path(__file__).parent / "template"
LEADING = 2  # tables of a comparison before its pictures: throughput and latency
KINDS = {"run": "Load", "compare": "Comparison", "scenario": "Scenario", "tune": "Tuning"}


def html(results: Sequence[Result]) -> str:
    """The page of RESULTS, in their order."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = {f"result-{index}": charts(result) for index, result in enumerate(results, 1)}
    specs = {f"{key}-{chart.name}": chart.spec for key, members in drawn.items() for chart in members}
    script = (TEMPLATE / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(
        title=" · ".join(dict.fromkeys(result.title for result in results)),
        heading="h1" if len(results) == 1 else "h2",
        policy=policy(runtime(), script),
        style=_style(),
        results=[_section(result, key, drawn[key]) for result, key in zip(results, drawn, strict=True)],
        specs=inert(json.dumps({"config": config(PAGE), "charts": specs})),
        runtime=runtime(),
        script=script,
        version=hfx.__version__,
    )


def policy(*scripts: str) -> str:
    """The content security policy under which only SCRIPTS run, and nothing is fetched."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def inert(text: str) -> str:
    """JSON TEXT that no HTML parser can take for markup, with the same meaning."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def runtime() -> str:
    """Vega, Vega-Lite and vega-embed as one script, as vl-convert carries them."""
    import altair as alt
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version(alt.SCHEMA_VERSION))
    return bundle.replace("</script", "<\\/script").strip()


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _style() -> str:
    text = (TEMPLATE / "page.css").read_text(encoding="utf-8")
    return text.replace("LIGHT-COLOURS", variables(LIGHT)).replace("DARK-COLOURS", variables(DARK))


def _section(result: Result, key: str, drawn: Sequence[Chart]) -> dict[str, Any]:
    return {
        "key": key,
        "title": result.title,
        "kind": KINDS[result.kind],
        "created": _moment(result.created),
        "machine": _machine(result),
        "command": result.command,
        "warnings": warnings(result),
        "top": [table for table in _top(result) if table],
        "charts": [_figure(chart) for chart in drawn],
        "bottom": [table for table in _bottom(result) if table],
        "file": f"{re.sub(r'[^a-zA-Z0-9]+', '-', result.title).strip('-').lower() or 'result'}.json",
        "json": inert(to_json(result)),
    }


def _figure(chart: Chart) -> dict[str, Any]:
    return {
        "name": chart.name,
        "title": chart.title,
        "words": chart.words,
        "height": chart.spec["height"],
        "table": chart.table,
    }


def _top(result: Result) -> list[Table]:
    """What answers the question: verdicts, then the figures."""
    if result.kind == "run":
        return [goals_table(goals(result)), run_table(result)]
    if result.kind == "tune":
        return [goals_table(goals(result)), trials_table(result)]
    best = [best_table(result)] if result.kind == "compare" else []
    return [goals_table(goals(result)), *comparison_tables(result)[:LEADING], *best]


def _bottom(result: Result) -> list[Table]:
    """What stands behind it."""
    alone = result.kind == "run"
    compared = [] if alone or result.kind == "tune" else comparison_tables(result)[LEADING:]
    load = [cost_table(result)] if alone else [cost_table(result), run_table(result)]
    server = [server_table(result), steps_table(result), roofline_table(result)]
    return [*compared, *load, *server, published_table(result), details_table(result), machine_table(result)]


def _moment(text: str) -> str:
    return re.sub(r"(Z|\+00:00)$", " UTC", text.replace("T", " "))


def _machine(result: Result) -> str:
    machine = result.machine
    return ", ".join([machine.processor, f"{machine.cores} cores", size(machine.memory), *machine.gpus])
