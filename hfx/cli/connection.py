"""The options of a connection to a server and its client, and the arguments for repositories and models."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from hfx.cli.commands import flag, given
from hfx.cli.interrupts import deferred
from hfx.errors import HfxError, UsageError
from hfx.names import MANIFEST_FILE
from hfx.options import Option, option

if TYPE_CHECKING:
    from hfx.client import Client

DEFAULT_URL = "127.0.0.1:8001"
DEFAULT_REPOSITORY = Path("model_repository")
TOKEN_VARIABLE = "HFX_TOKEN"
AT_ONCE = 32
Header = Annotated[list[str] | None, Option(help="Header to send. Repeatable.", metavar="KEY:VALUE")]
TokenFile = Annotated[
    Path | None,
    Option(help=f"File with the bearer token (API key). Default: {TOKEN_VARIABLE} of the environment.", metavar="FILE"),
]
TlsCa = Annotated[
    Path | None,
    Option("--tls-ca", help="File with the certificates to trust (PEM), for grpcs:// and https://.", metavar="FILE"),
]
LIMITS = ("timeout", "idle_timeout", "retries", "max_in_flight")


@dataclass(frozen=True)
class Connection:
    """The address of the server, and how to connect; None means the client's default."""

    PANEL: ClassVar[str] = "Server"

    url: str | None = option(
        None,
        f"Server: HOST:PORT or grpcs://HOST:PORT (gRPC), or http(s)://HOST:PORT. Default: {DEFAULT_URL}.",
        metavar="URL",
    )
    timeout: float | None = option(
        None, "Time limit for each answer, enforced here and by the server. Default: 60.", metavar="SECONDS"
    )
    idle_timeout: float | None = option(
        None, "With --stream: longest pause between two pieces of text. Default: 30.", metavar="SECONDS"
    )
    retries: int | None = option(None, "Retries when the server is busy or unreachable. Default: 2.", min=0)
    max_in_flight: int | None = option(None, f"Most requests in flight at a time. Default: {AT_ONCE}.", min=1)
    header: Header = None
    token_file: TokenFile = None
    tls_ca: TlsCa = None


def connect(connection: Connection) -> Client:
    """Return a client of the server. Raises UsageError for an invalid value."""
    with deferred():
        from hfx.client import Client, Tls

        # The client has its own defaults for the options not given.
        limits: dict[str, Any] = {name: value for name, value in given(connection).items() if name in LIMITS}
        return Client(
            connection.url or DEFAULT_URL,
            headers=headers_of(connection),
            token=token_of(connection),
            tls=None if connection.tls_ca is None else Tls(ca=connection.tls_ca),
            **limits,
        )


def refuse_all(connection: Connection, reason: str) -> None:
    """Raise UsageError with `reason` if any option of `connection` was given."""
    for field in given(connection):
        option = flag(Connection, field)
        raise UsageError(f"{option} is for servers; {reason}.", f"Leave {option} out.")


def headers_of(connection: Connection) -> dict[str, str]:
    """Return the headers to send. Raises UsageError for a header without a colon or a name."""
    headers = {}
    for header in connection.header or []:
        key, colon, value = header.partition(":")
        if not colon or not key.strip():
            raise UsageError(f"{header!r} is not a header.", "Write KEY:VALUE, e.g. --header 'x-tenant: blue'.")
        headers[key.strip()] = value.strip()
    return headers


def token_of(connection: Connection) -> str | None:
    """Return the token, from a file or the environment: other users can see the values of options."""
    from hfx.front.file_changes import open_regular

    if connection.token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        with open_regular(connection.token_file) as file:
            token = file.read().decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"The token file {connection.token_file} can't be read: {reason}.", "Give --token-file a text file."
        ) from error
    if not token:
        raise UsageError(f"The token file {connection.token_file} is empty.", "Write the token into it.")
    return token


# Completion of model names, from the repository or the running server


COMPLETION_SECONDS = 0.5  # timeout of a server's answer


def model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the models whose names begin with `incomplete`, in the repository or on the server."""
    url, repository = ctx.params.get("url"), ctx.params.get("repository")
    manifests = [] if url else Path(repository or DEFAULT_REPOSITORY).glob(f"*/{MANIFEST_FILE}")
    names = sorted(path.parent.name for path in manifests)
    if not names and "url" in ctx.params:
        names = _served(url[0] if isinstance(url, list) else url)
    return [name for name in names if name.startswith(incomplete)]


def _served(url: str | None) -> list[str]:
    try:
        with connect(Connection(url=url, timeout=COMPLETION_SECONDS, retries=0)) as client:
            return client.models()
    except HfxError:
        return []  # a completion must not print errors


RepositoryArgument = Annotated[
    Path | None, typer.Argument(metavar="REPOSITORY", help=f"Model repository. Default: {DEFAULT_REPOSITORY}.")
]
RepositoryOption = Annotated[
    Path | None, Option("--repository", metavar="DIR", help="The same, as other commands have it.")
]
PublishedName = Annotated[str, typer.Argument(metavar="NAME", help="The published model.", autocompletion=model_names)]


def chosen_repository(argument: Path | None, option: Path | None) -> Path:
    """Return the repository, given as an argument or by --repository. Raises UsageError if both are given."""
    if argument is not None and option is not None:
        raise UsageError(f"The repository is given twice: {argument}, and --repository {option}.", "Give it once.")
    return argument or option or DEFAULT_REPOSITORY
