"""Manage batch endpoints, with the files and commands of `az ml batch-endpoint`.

Options that the commands of deployments and jobs share are here.

Examples:
  hfx batch azure endpoint create reviews
  hfx batch azure endpoint list
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer
from typer import Argument

from hfx.cli.commands import grouped
from hfx.cli.output import reporter
from hfx.errors import UsageError
from hfx.options import Option, option

if TYPE_CHECKING:
    from hfx.batch.azure.workspace import Workspace
    from hfx.strict_json import Node


VARIABLE = "HFX_WORKSPACE"
NAMED = "Name and workspace"


@dataclass(frozen=True)
class InWorkspace:
    """The option for the folder of endpoints and jobs."""

    PANEL: ClassVar[str] = NAMED

    workspace: Path | None = option(
        None, f"Folder of endpoints and jobs. Default: {VARIABLE} of the environment, else .hfx.", "--workspace", "-w"
    )

    def opened(self, repository: Path = Path("model_repository")) -> Workspace:
        """Return the workspace, with the published models of `repository`."""
        from hfx.batch.azure.workspace import Workspace

        return Workspace(self.workspace or Path(os.environ.get(VARIABLE) or ".hfx"), repository)


@dataclass(frozen=True)
class Named:
    """An endpoint, a deployment or a job, named in one of two ways."""

    PANEL: ClassVar[str] = NAMED

    name: Annotated[str | None, Argument(metavar="NAME", help="Name.")] = None
    name_option: str | None = option(None, "Same as NAME, as in az ml.", "--name", "-n")

    @property
    def optional(self) -> str | None:
        """The name, if there is one. Raises UsageError for two names."""
        if self.name is not None and self.name_option is not None:
            raise UsageError("There are two names.", "Give NAME or --name.")
        return self.name if self.name_option is None else self.name_option

    @property
    def given(self) -> str:
        """The name. Raises UsageError if there is none."""
        if self.optional is None:
            raise UsageError("There is no name.", "Give NAME or --name.")
        return self.optional


File = Annotated[Path | None, Option("--file", "-f", metavar="F.yml", help="YAML file, as for az ml.")]
Set = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Set a key. Repeatable.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]


def document(file: Path | None, names: dict[str, str | None], changes: list[str] | None) -> Node:
    """Return a file's document, changed by `names` that were given as options and `changes` of the form KEY=VALUE."""
    from hfx.batch.azure.documents import parse_document, read_document, with_settings

    read = read_document(file) if file else parse_document("", "the options")
    given = [f"{key}={name}" for key, name in names.items() if name is not None]
    return with_settings(read, [*given, *(changes or [])])


def confirm(what: str, yes: bool) -> None:
    """Ask for confirmation on a terminal, as az ml does. Raises typer.Abort if the user declines."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {what}?", abort=True)


COMMANDS = {name: f"{__name__}:{name}" for name in ("create", "show", "list", "update", "delete")} | {
    "list": f"{__name__}:list_"
}


@grouped
def create(ctx: typer.Context, name: Named, place: InWorkspace, file: File = None, set_: Set = None) -> None:
    """Create or replace an endpoint, by name or from a file.

    Examples:
      hfx batch azure endpoint create reviews
      hfx batch azure endpoint create --file endpoint.yml
    """
    if file is None and name.optional is None and not set_:
        raise UsageError("There is no endpoint to create.", "Give NAME, or --file endpoint.yml.")
    _write(ctx, place.opened(), document(file, {"name": name.optional}, set_))


@grouped
def update(ctx: typer.Context, name: Named, place: InWorkspace, set_: Set = None) -> None:
    """Change an endpoint: --set defaults.deployment_name=D makes D its default.

    Examples:
      hfx batch azure endpoint update reviews --set defaults.deployment_name=blue
      hfx batch azure endpoint update reviews --set description=Reviews
    """
    from hfx.batch.azure.documents import with_settings

    workspace = place.opened()
    stored = workspace.endpoint_file(name.given)
    _write(ctx, workspace, with_settings(stored, [*(set_ or []), f"name={name.given}"]))


@grouped
def show(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """Show an endpoint as YAML.

    Examples:
      hfx batch azure endpoint show reviews
      hfx batch azure endpoint show reviews --json
    """
    from hfx.batch.azure.documents import dump

    value = place.opened().endpoint(name.given).document()
    reporter(ctx).result(value, dump(value).rstrip())


@grouped
def list_(ctx: typer.Context, place: InWorkspace) -> None:
    """List the endpoints.

    Examples:
      hfx batch azure endpoint list
      hfx batch azure endpoint list --workspace /data/hfx
    """
    endpoints = place.opened().endpoints()
    value = {"endpoints": [each.document() for each in endpoints]}
    rows = [(endpoint.name, endpoint.default or "-") for endpoint in endpoints]
    reporter(ctx).table(value, ("NAME", "DEFAULT DEPLOYMENT"), rows)


@grouped
def delete(ctx: typer.Context, name: Named, place: InWorkspace, yes: Yes = False) -> None:
    """Delete an endpoint and its deployments. Its jobs are kept.

    Examples:
      hfx batch azure endpoint delete reviews
      hfx batch azure endpoint delete reviews --yes
    """
    confirm(f"the endpoint {name.given} and its deployments", yes)
    place.opened().delete_endpoint(name.given)
    reporter(ctx).result({"deleted": name.given}, f"Deleted the endpoint {name.given}; its jobs are kept.")


def _write(ctx: typer.Context, workspace: Workspace, content: Node) -> None:
    from hfx.batch.azure.workspace import parse_endpoint

    endpoint = parse_endpoint(content)
    workspace.write_endpoint(endpoint)
    reporter(ctx).result(endpoint.document(), f"Wrote the endpoint {endpoint.name}.")
