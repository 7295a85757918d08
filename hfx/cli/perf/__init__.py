"""Measure served models: load, comparisons, tuning, reports."""

COMMANDS = {
    "run": "hfx.cli.perf.run",
    "compare": "hfx.cli.perf.compare",
    "tune": "hfx.cli.perf.tune",
    "report": "hfx.cli.perf.report",
    "tools": "hfx.cli.perf.tools",
}
