"""Measure served models: load, comparisons, tuning, reports."""

COMMANDS = {
    "run": "hfx.cli.perf.run",
    "compare": "hfx.cli.perf.compare",
    "scenario": "hfx.cli.perf.scenario",
    "tune": "hfx.cli.perf.tune",
    "report": "hfx.cli.perf.report",
    "machine": "hfx.cli.perf.machine",
    "peers": "hfx.cli.perf.peers",
    "tools": "hfx.cli.perf.tools",
}
