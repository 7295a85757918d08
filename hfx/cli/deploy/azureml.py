"""`hfx deploy azureml`: batch deployments with a scoring script, or an online deployment of a bundle, for Azure ML."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hfx.cli.commands import flag, grouped
from hfx.cli.deploy.options import DeployOptions, print_written
from hfx.cli.output import reporter
from hfx.errors import UsageError
from hfx.options import Option, option


@dataclass(frozen=True)
class BatchOptions:
    """The options of a batch deployment: its input, and where it runs."""

    compute: str = option("cpu-cluster", "Batch: compute cluster.")
    column: str = option("", "Batch: column to read, as for `hfx batch run`. Default: text.")
    settings: str = option("{}", "Batch: settings for each row, as a JSON object.")


@dataclass(frozen=True)
class OnlineOptions:
    """The options of an online deployment: its machines, and the source of its packages."""

    instance_type: str = option("", "Online: instance type. Default: a small one for the device.")
    offline: Path | None = option(None, "Online: take wheels from this folder instead of a package index.")


@grouped
def command(
    context: typer.Context,
    options: DeployOptions,
    batch: BatchOptions,
    online: OnlineOptions,
    kind: Annotated[Literal["batch", "online"], Option(help="Kind of endpoint.")] = "batch",
) -> None:
    """Write files for `az ml`: a batch endpoint with a deployment for each model, or an online endpoint.

    Examples:
      hfx deploy azureml sentiment --output endpoint
      hfx deploy azureml sentiment --output endpoint --kind online
    """
    from hfx.deploy import azureml, bundle

    report, steps = reporter(context), [f"Next: {options.output / 'README.md'}."]
    _refuse(OnlineOptions, online, "batch") if kind == "batch" else _refuse(BatchOptions, batch, "online")
    deployment = options.deployment(report)
    if kind == "batch":
        rows = azureml.Rows(batch.column, _settings(batch.settings))
        azureml.write_batch(deployment, options.output, batch.compute, rows, options.force)
    else:
        packages = bundle.Packages(bundle.python_of(deployment), online.offline)
        with report.progress("Fetching wheels"):
            written = azureml.write_online(deployment, options.output, packages, online.instance_type, options.force)
        steps.insert(0, f"  packages: {written.package_bytes / 1e6:.1f} MB unpacked")
    print_written(report, "azureml", deployment, options.output, steps)


def _refuse(group: type, options: Any, kind: str) -> None:
    """Raise UsageError for an option of the other kind of endpoint."""
    for field in fields(group):
        if getattr(options, field.name) != field.default:
            option = flag(group, field.name)
            raise UsageError(f"{option} is not for --kind {kind}.", f"Leave {option} out.")


def _settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise UsageError("--settings is not a JSON object.", """E.g. '{"max_tokens": 60}'.""")
    return settings
