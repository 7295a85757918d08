"""`hfx remove`: a published model is deleted from its repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hfx.cli.connection import DEFAULT_REPOSITORY, PublishedName
from hfx.cli.output import reporter
from hfx.errors import RepositoryError


def command(
    context: typer.Context,
    name: PublishedName,
    repository: Annotated[Path, typer.Option(help="The model repository.", metavar="DIR")] = DEFAULT_REPOSITORY,
    force: Annotated[bool, typer.Option("--force", help="Also a model that is served: take it out first.")] = False,
) -> None:
    """Delete a published model with all its folders.

    Examples:
      hfx remove sentiment
      hfx remove sentiment --force --repository /srv/models
    """
    from hfx.repository import model, remove
    from hfx.triton.commands import send, servers_of

    report = reporter(context)
    model(repository, name)  # raises when there is none
    serving = [path for path in servers_of(repository) if name in send(path, "status")["models"]]
    if serving and not force:
        raise RepositoryError(f"{name!r} is being served.", "Use --force to take it out of the server first.")
    for path in serving:
        send(path, "unload", [name])
    folders = remove(repository, name)
    report.result({"name": name, "folders": list(folders)}, [f"Deleted {', '.join(folders)}."])
