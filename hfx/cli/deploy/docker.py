"""`hfx deploy docker` and `hfx deploy compose`: an image of published models, alone and with its monitoring."""

from __future__ import annotations

import typer

from hfx.cli.commands import grouped
from hfx.cli.deploy.options import DeployOptions, print_written
from hfx.cli.output import reporter


@grouped
def docker(context: typer.Context, options: DeployOptions) -> None:
    """Write a docker build context for an image with the models, and a script that runs it.

    Examples:
      hfx deploy docker sentiment --output image
      hfx deploy docker sentiment stories --output image --triton 26.07 --force
    """
    from hfx.deploy import docker

    report = reporter(context)
    deployment = options.deployment(report)
    docker.write(deployment, options.output, options.force)
    steps = [f"Next: {options.output / 'README.md'} has the lines that build the image; ./run.sh runs it."]
    print_written(report, "docker", deployment, options.output, steps)


@grouped
def compose(context: typer.Context, options: DeployOptions) -> None:
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
