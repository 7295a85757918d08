"""Manage batch deployments, with the files and commands of `az ml batch-deployment`.

Examples:
  hfx batch azure deployment create --file deployment.yml
  hfx batch azure deployment list --endpoint-name reviews
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hfx.cli.batch.azure.endpoint import File, InWorkspace, Named, Set, Yes, confirm, document
from hfx.cli.commands import grouped
from hfx.cli.output import reporter
from hfx.errors import UsageError
from hfx.options import Option

if TYPE_CHECKING:
    from hfx.batch.azure.deployment import Deployment

COMMANDS = {name: f"{__name__}:{name}" for name in ("create", "show", "list", "update", "delete")} | {
    "list": f"{__name__}:list_"
}
Endpoint = Annotated[str, Option("--endpoint-name", "-e", help="Endpoint of the deployment.")]
MODELS = Path("model_repository")


@grouped
def create(
    ctx: typer.Context,
    name: Named,
    place: InWorkspace,
    endpoint_name: Annotated[str | None, Option("--endpoint-name", "-e", help="Endpoint of the deployment.")] = None,
    file: File = None,
    set_: Set = None,
    set_default: Annotated[bool, Option("--set-default", help="Make this the endpoint's default deployment.")] = False,
    repository: Annotated[Path, Option(help="Model repository for azureml:NAME@latest.")] = MODELS,
) -> None:
    """Create or replace a deployment from a file. Its code is copied.

    Examples:
      hfx batch azure deployment create --file deployment.yml
      hfx batch azure deployment create blue --endpoint-name reviews --file deployment.yml --set-default
    """
    from hfx.batch.azure.deployment import parse_deployment

    if file is None:
        raise UsageError("A deployment is created from a file.", "Give --file deployment.yml.")
    content = document(file, {"name": name.optional, "endpoint_name": endpoint_name}, set_)
    deployment = parse_deployment(content, file.absolute().parent, repository)
    _report(ctx, place.opened(repository).write_deployment(deployment, set_default))


@grouped
def update(ctx: typer.Context, name: Named, place: InWorkspace, endpoint_name: Endpoint, set_: Set = None) -> None:
    """Change keys of a deployment, such as --set settings.mini_batch_size=4. Running jobs keep their settings.

    Examples:
      hfx batch azure deployment update blue --endpoint-name reviews --set settings.mini_batch_size=4
      hfx batch azure deployment update blue -e reviews --set settings.error_threshold=10
    """
    names = [f"name={name.given}", f"endpoint_name={endpoint_name}"]
    workspace = place.opened()
    deployment = workspace.deployment(endpoint_name, name.given, [*(set_ or []), *names])
    _report(ctx, workspace.write_deployment(deployment))


@grouped
def show(ctx: typer.Context, name: Named, place: InWorkspace, endpoint_name: Endpoint) -> None:
    """Show a deployment as YAML.

    Examples:
      hfx batch azure deployment show blue --endpoint-name reviews
      hfx batch azure deployment show blue -e reviews --json
    """
    from hfx.batch.azure.documents import dump

    value = place.opened().deployment(endpoint_name, name.given).document()
    reporter(ctx).result(value, dump(value).rstrip())


@grouped
def list_(ctx: typer.Context, place: InWorkspace, endpoint_name: Endpoint) -> None:
    """List the deployments of an endpoint.

    Examples:
      hfx batch azure deployment list --endpoint-name reviews
      hfx batch azure deployment list -e reviews --json
    """
    workspace = place.opened()
    default, deployments = workspace.endpoint(endpoint_name).default, workspace.deployments(endpoint_name)
    value = {"deployments": [deployment.document() for deployment in deployments]}
    rows = [(each.name, "yes" * (each.name == default), each.model, each.scoring_script) for each in deployments]
    shown = [[cell or "-" for cell in row] for row in rows]
    reporter(ctx).table(value, ("NAME", "DEFAULT", "MODEL", "SCRIPT"), shown)


@grouped
def delete(ctx: typer.Context, name: Named, place: InWorkspace, endpoint_name: Endpoint, yes: Yes = False) -> None:
    """Delete a deployment. Its jobs are kept.

    Examples:
      hfx batch azure deployment delete blue --endpoint-name reviews
      hfx batch azure deployment delete blue -e reviews --yes
    """
    confirm(f"the deployment {name.given} of {endpoint_name}", yes)
    place.opened().delete_deployment(endpoint_name, name.given)
    reporter(ctx).result({"deleted": name.given}, f"Deleted the deployment {name.given}; its jobs are kept.")


def _report(ctx: typer.Context, deployment: Deployment) -> None:
    text = f"Wrote the deployment {deployment.name} of {deployment.endpoint_name}."
    reporter(ctx).result(deployment.document(), text)
