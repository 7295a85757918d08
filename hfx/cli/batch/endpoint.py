"""Batch endpoints by the files and commands of `az ml batch-endpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from hfx.cli.batch.azure import File, InWorkspace, Named, Set, Yes, confirm, document
from hfx.cli.commands import grouped
from hfx.cli.output import reporter
from hfx.errors import UsageError

if TYPE_CHECKING:
    from hfx.batch.azure.workspace import Workspace
    from hfx.strict_json import Node

COMMANDS = {name: f"{__name__}:{name}" for name in ("create", "show", "list", "update", "delete")} | {
    "list": f"{__name__}:list_"
}


@grouped
def create(ctx: typer.Context, name: Named, place: InWorkspace, file: File = None, set_: Set = None) -> None:
    """Create an endpoint, or write it anew: from a file, or with a name.

    Examples:
      hfx batch endpoint create reviews
      hfx batch endpoint create --file endpoint.yml
    """
    if file is None and name.optional is None and not set_:
        raise UsageError("There is no endpoint to create.", "Give NAME, or --file endpoint.yml.")
    _write(ctx, place.opened(), document(file, {"name": name.optional}, set_))


@grouped
def update(ctx: typer.Context, name: Named, place: InWorkspace, set_: Set = None) -> None:
    """Change an endpoint: --set defaults.deployment_name=D makes D its default.

    Examples:
      hfx batch endpoint update reviews --set defaults.deployment_name=blue
      hfx batch endpoint update reviews --set description=Reviews
    """
    from hfx.batch.azure.documents import with_settings

    workspace = place.opened()
    stored = workspace.endpoint_file(name.given)
    _write(ctx, workspace, with_settings(stored, [*(set_ or []), f"name={name.given}"]))


@grouped
def show(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """Show an endpoint as YAML.

    Examples:
      hfx batch endpoint show reviews
      hfx batch endpoint show reviews --json
    """
    from hfx.batch.azure.documents import dump

    value = place.opened().endpoint(name.given).document()
    reporter(ctx).result(value, dump(value).rstrip())


@grouped
def list_(ctx: typer.Context, place: InWorkspace) -> None:
    """List the endpoints.

    Examples:
      hfx batch endpoint list
      hfx batch endpoint list --workspace /data/hfx
    """
    endpoints = place.opened().endpoints()
    value = {"endpoints": [each.document() for each in endpoints]}
    rows = [(endpoint.name, endpoint.default or "-") for endpoint in endpoints]
    reporter(ctx).table(value, ("NAME", "DEFAULT DEPLOYMENT"), rows)


@grouped
def delete(ctx: typer.Context, name: Named, place: InWorkspace, yes: Yes = False) -> None:
    """Delete an endpoint and its deployments; its jobs stay.

    Examples:
      hfx batch endpoint delete reviews
      hfx batch endpoint delete reviews --yes
    """
    confirm(f"the endpoint {name.given} and its deployments", yes)
    place.opened().delete_endpoint(name.given)
    reporter(ctx).result({"deleted": name.given}, f"Deleted the endpoint {name.given}; its jobs stay.")


def _write(ctx: typer.Context, workspace: Workspace, content: Node) -> None:
    from hfx.batch.azure.workspace import parse_endpoint

    endpoint = parse_endpoint(content)
    workspace.write_endpoint(endpoint)
    reporter(ctx).result(endpoint.document(), f"Wrote the endpoint {endpoint.name}.")
