"""Score files in batch jobs.

Examples:
  hfx batch run sentiment reviews.csv --column text --output scored
  hfx batch resume scored
  hfx batch show scored
"""

COMMANDS = {
    "run": "hfx.cli.batch.run:run",
    "resume": "hfx.cli.batch.run:resume",
    "list": "hfx.cli.batch.folders:list_jobs",
    "show": "hfx.cli.batch.folders:show",
    "logs": "hfx.cli.batch.folders:logs",
    "cancel": "hfx.cli.batch.folders:cancel",
    "publish": "hfx.cli.batch.folders:publish",
    "azure": "hfx.cli.batch.azure",
}
MOVED = {name: f"hfx batch azure {name}" for name in ("endpoint", "deployment", "invoke", "list-jobs", "job")}
