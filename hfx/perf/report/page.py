"""Results as one HTML file that needs no network: the answer, charts, and tables.

The inline runtime of the charts (Vega) is about 900 kB. A content security policy allows only the page's two scripts,
by their hashes, so that a name in a result can't inject another script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hfx.perf.report import TEMPLATE, render, tables
from hfx.perf.report.answer import answer
from hfx.perf.report.charts import DARK, LIGHT, PAGE, charts, config, vega_lite_version
from hfx.perf.results import Result


def html(results: Sequence[Result]) -> str:
    """Return the page of `results`, in their order."""
    drawn = [charts(result) for result in results]
    specs = {f"{index}-{chart.name}": chart.spec for index, found in enumerate(drawn, 1) for chart in found}
    script = (TEMPLATE / "page.js").read_text(encoding="utf-8")
    return render(
        "page.html",
        title=" · ".join(dict.fromkeys(result.title for result in results)),
        policy=_policy(runtime(), script),
        light=LIGHT,
        dark=DARK,
        results=[_section(result) | {"charts": found} for result, found in zip(results, drawn, strict=True)],
        machines=_machines(results),
        specs={"config": config(PAGE), "charts": specs},
        runtime=runtime(),
        script=script,
    )


@cache
def runtime() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script, as vl-convert contains them."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite_version())
    return bundle.replace("</script", "<\\/script").strip()


def _policy(*scripts: str) -> str:
    """Return the content security policy under which only `scripts` run, and nothing is fetched."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _section(result: Result) -> dict[str, Any]:
    return {
        "title": result.title,
        "created": result.created.replace("T", " ").removesuffix("Z").removesuffix("+00:00") + " UTC",
        "command": result.command,
        "answer": answer(result),
        "warnings": tables.warnings(result),
        "tables": [table for table in _tables(result) if table],
    }


def _tables(result: Result) -> list[tables.Table]:
    """Return the tables without their notes, which are among the page's warnings."""
    bare = tables.proof(replace(result, notes=()))
    if result.kind == "tune":
        top = [tables.trials_table(result), *(tables.comparison_tables(bare) if bare.runs else [])]
    elif len({run.subject.label for run in result.runs}) > 1:
        top = [tables.best_table(bare), *tables.comparison_tables(bare)]
    else:
        top = [tables.run_table(bare)]
    return [*top, tables.server_table(bare), tables.steps_table(bare), tables.machines_table(bare)]


def _machines(results: Sequence[Result]) -> list[tables.Table]:
    """Return a table for each distinct machine. Its load at the start is ignored, because that belongs to a result."""
    titles: dict[str, list[str]] = {}
    machines = {}
    for result in results:
        machine = replace(result.machine, load=0.0)
        titles.setdefault(repr(machine), []).append(result.title)
        machines[repr(machine)] = machine
    if len(machines) == 1:
        return [tables.machine_table(machine) for machine in machines.values()]
    return [tables.machine_table(machine, f"Machine of {', '.join(titles[key])}") for key, machine in machines.items()]
