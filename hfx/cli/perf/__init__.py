"""Measure served models: load, comparisons, reports."""

COMMANDS = {
    "run": "hfx.cli.perf.run",
    "compare": "hfx.cli.perf.compare",
    "report": "hfx.cli.perf.report",
    "tools": "hfx.cli.perf.run:tools",
}
