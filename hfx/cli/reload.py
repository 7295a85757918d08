"""`hfx reload`: models that were published anew, served by a running `hfx serve` without a pause."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hfx.cli.connection import DEFAULT_REPOSITORY, model_names
from hfx.cli.output import reporter
from hfx.errors import ServerError


def command(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Models; without any, all that were published again.", autocompletion=model_names
        ),
    ] = None,
    repository: Annotated[
        Path, typer.Option(help="The repository that is served.", metavar="DIR")
    ] = DEFAULT_REPOSITORY,
) -> None:
    """Make a running `hfx serve` load the models that were published again.

    Examples:
      hfx reload
      hfx reload sentiment --repository /srv/models
    """
    from hfx.triton.commands import send, servers_of

    report = reporter(context)
    servers = servers_of(repository)
    if not servers:
        raise ServerError(
            f"No `hfx serve` of this user serves {repository}.",
            "Start one, or name its repository with --repository. One in a container has to be restarted.",
        )
    with report.progress("Loading the models"):
        outcomes = [outcome for path in servers for outcome in send(path, "reload", names or ())["outcomes"]]
    lines = [f"{each['model']}: {each['outcome']} {each['reason']}".strip() for each in outcomes]
    report.result({"repository": str(repository), "models": outcomes}, lines or ["All models are served as published."])
    failed = [each["model"] for each in outcomes if each["outcome"] == "failed"]
    if failed:
        raise ServerError(
            f"Not served as published: {', '.join(failed)}. What was served before is served on.",
            "The reason of each is above. Correct it, then reload again.",
        )
