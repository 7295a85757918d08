"""Model names on TAB: those of the repository, or of the running server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hfx.names import MANIFEST_FILE

SECONDS = 0.5  # that a server may take to answer


def model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names that begin with `incomplete`; none where neither a repository nor a server gives any."""
    url, repository = ctx.params.get("url"), ctx.params.get("repository")
    names = [] if url else _published(Path(repository or "model_repository"))
    if not names and "url" in ctx.params:
        names = _served(url[0] if isinstance(url, list) else url)
    return [name for name in names if name.startswith(incomplete)]


def _published(repository: Path) -> list[str]:
    return sorted(path.parent.name for path in repository.glob(f"*/{MANIFEST_FILE}"))


def _served(url: str | None) -> list[str]:
    from hfx.cli.connection import Connection, connect
    from hfx.errors import HfxError

    try:
        with connect(Connection(url=url, timeout=SECONDS, retries=0)) as client:
            return client.models()
    except HfxError:
        return []  # a completion prints nothing else


PublishedName = Annotated[str, typer.Argument(metavar="NAME", help="The published model.", autocompletion=model_names)]
