"""`hfx deploy compose`: the models, Prometheus and Grafana on one machine."""

from __future__ import annotations

import typer

from hfx.cli.commands import grouped
from hfx.cli.deploy.options import DeployOptions, print_written
from hfx.cli.output import reporter


@grouped
def command(context: typer.Context, options: DeployOptions) -> None:
    """Write a folder for docker compose: the models, Prometheus with alerts, Grafana with a dashboard.

    Examples:
      hfx deploy compose sentiment --output compose
      hfx deploy compose sentiment stories --output compose --cpus 8
    """
    from hfx.deploy import compose

    report = reporter(context)
    deployment = options.deployment(report)
    compose.write(deployment, options.output, options.force)
    steps = [f"Next: docker compose --project-directory {options.output} up --build"]
    print_written(report, "compose", deployment, options.output, steps)
