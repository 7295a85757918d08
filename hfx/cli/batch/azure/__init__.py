"""Run Azure ML's batch endpoints on this machine, with the files and commands of `az ml`.

Examples:
  hfx batch azure endpoint create reviews
  hfx batch azure deployment create blue --endpoint-name reviews --file deployment.yml --set-default
  hfx batch azure invoke reviews --input reviews.csv --wait
"""

COMMANDS = {
    "endpoint": "hfx.cli.batch.azure.endpoint",
    "deployment": "hfx.cli.batch.azure.deployment",
    "invoke": "hfx.cli.batch.azure.jobs:invoke",
    "list-jobs": "hfx.cli.batch.azure.jobs:list_jobs",
    "job": "hfx.cli.batch.azure.jobs",
}
