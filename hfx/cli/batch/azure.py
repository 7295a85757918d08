"""What the commands of endpoints, deployments and jobs share: options by the names that `az ml` gives them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from hfx.errors import UsageError

if TYPE_CHECKING:
    from hfx.batch.azure.workspace import Workspace
    from hfx.strict_json import Node

VARIABLE = "HFX_WORKSPACE"


@dataclass(frozen=True)
class InWorkspace:
    """Where endpoints and jobs are."""

    workspace: Annotated[
        Path | None,
        Option(
            "--workspace", "-w", help=f"Folder of endpoints and jobs; default {VARIABLE} of the environment, or .hfx."
        ),
    ] = None

    def opened(self, repository: Path = Path("model_repository")) -> Workspace:
        """The workspace, with the published models of `repository`."""
        from hfx.batch.azure.workspace import Workspace

        return Workspace(self.workspace or Path(os.environ.get(VARIABLE) or ".hfx"), repository)


@dataclass(frozen=True)
class Named:
    """An endpoint, a deployment or a job, named in one of two ways."""

    name: Annotated[str | None, Argument(metavar="NAME", help="Its name.")] = None
    name_option: Annotated[str | None, Option("--name", "-n", help="The same, as az ml has it.")] = None

    @property
    def optional(self) -> str | None:
        """The name, if there is one. Raises UsageError for two."""
        if self.name is not None and self.name_option is not None:
            raise UsageError("There are two names.", "Give NAME or --name.")
        return self.name if self.name_option is None else self.name_option

    @property
    def given(self) -> str:
        """The name. Raises UsageError where there is none."""
        if self.optional is None:
            raise UsageError("There is no name.", "Give NAME or --name.")
        return self.optional


File = Annotated[Path | None, Option("--file", "-f", metavar="F.yml", help="The YAML, as az ml takes it.")]
Set = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a key; may be repeated.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not prompt, on a terminal.")]


def document(file: Path | None, names: dict[str, str | None], changes: list[str] | None) -> Node:
    """The document of a file with the `names` that were given as options, and `changes` of the form KEY=VALUE."""
    from hfx.batch.azure.documents import parse_document, read_document, with_settings

    read = read_document(file) if file else parse_document("", "the options")
    given = [f"{key}={name}" for key, name in names.items() if name is not None]
    return with_settings(read, [*given, *(changes or [])])


def confirm(what: str, yes: bool) -> None:
    """Prompt on a terminal, as az ml does; typer.Abort for a no."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {what}?", abort=True)
