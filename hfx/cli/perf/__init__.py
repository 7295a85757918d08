"""Measure served models: load tests, comparisons, reports.

Examples:
  hfx perf run sentiment --concurrency 1:64:2x --output load.json
  hfx perf compare sentiment --precisions fp32,int8
  hfx perf report load.json
"""

COMMANDS = {
    "run": "hfx.cli.perf.run",
    "compare": "hfx.cli.perf.compare",
    "report": "hfx.cli.perf.report",
    "tools": "hfx.cli.perf.run:tools",
}
