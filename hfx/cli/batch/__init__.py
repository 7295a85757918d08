"""Score files in batches: files in, files out."""

COMMANDS = {
    "run": "hfx.cli.batch.run:run",
    "resume": "hfx.cli.batch.run:resume",
    "list": "hfx.cli.batch.folders:list_jobs",
    "show": "hfx.cli.batch.folders:show",
    "logs": "hfx.cli.batch.folders:logs",
    "cancel": "hfx.cli.batch.folders:cancel",
    "publish": "hfx.cli.batch.folders:publish",
    "endpoint": "hfx.cli.batch.endpoint",
    "deployment": "hfx.cli.batch.deployment",
    "invoke": "hfx.cli.batch.jobs:invoke",
    "list-jobs": "hfx.cli.batch.jobs:list_jobs",
    "job": "hfx.cli.batch.jobs",
}
