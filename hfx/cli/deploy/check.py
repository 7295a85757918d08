"""`hfx deploy check`: a folder against its record and by rules, or a server against the checkpoints of its models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from hfx.cli.commands import flag, given, grouped
from hfx.cli.connection import Connection, connect
from hfx.cli.output import Reporter, reporter
from hfx.cli.serve_options import Device
from hfx.errors import LintFailed, UsageError, VerificationFailed

if TYPE_CHECKING:
    from hfx.client import Client

ADDRESS = re.compile(r"[a-z]+://.+|[^/]+:[0-9]+")


@dataclass(frozen=True)
class ServerOptions:
    """How a server is reached, and what it is compared with."""

    repository: Annotated[
        Path | None, Option(help="URL: the published models that it should serve; model_repository without it.")
    ] = None
    device: Annotated[Device | None, Option(help="URL: what the server runs the models on; cpu without it.")] = None
    max_drop: Annotated[float | None, Option(help="URL: share of answers that may be lost against the checkpoint.")] = (
        None
    )
    wait: Annotated[float | None, Option(help="URL: seconds that the server may take until it is ready.")] = None
    timeout: Annotated[float | None, Option(help="URL: seconds that an answer may take.")] = None
    header: Annotated[list[str] | None, Option(help="URL: header to send, KEY:VALUE; may be given several times.")] = (
        None
    )
    token_file: Annotated[
        Path | None, Option(help="URL: file with the token or API key; else HFX_TOKEN of the environment.")
    ] = None
    tls_ca: Annotated[Path | None, Option("--tls-ca", help="URL: file with the certificates to trust.")] = None

    def connection(self, url: str) -> Connection:
        """The connection to `url`."""
        return Connection(url, timeout=self.timeout, header=self.header, token_file=self.token_file, tls_ca=self.tls_ca)


@grouped
def command(
    context: typer.Context,
    target: Annotated[
        str, Argument(metavar="DIR|URL", help="A folder of `hfx deploy` or of manifests, or a server's address.")
    ],
    server: ServerOptions,
    names: Annotated[
        list[str] | None, Argument(metavar="NAME", help="URL: the models; all of the repository without it.")
    ] = None,
) -> None:
    """Check a folder for changed files and by rules (exit code 7), or a server's answers by the checkpoints' (4).

    A folder of manifests that hfx did not write is checked by the rules alone.

    Examples:
      hfx deploy check bundle
      hfx deploy check charts/rendered
      hfx deploy check 127.0.0.1:8001 sentiment --wait 60
    """
    report = reporter(context)
    if ADDRESS.fullmatch(target) and not Path(target).is_dir():
        _check_server(report, target, names or [], server)
        return
    options = [flag(ServerOptions, field) for field in given(server)]
    if names or options:
        raise UsageError(f"{(names or options)[0]} is for servers; {target} is a folder.", "Leave it out.")
    _check_folder(report, Path(target))


def _check_folder(report: Reporter, folder: Path) -> None:
    from hfx.deploy.check import check_folder

    checked = check_folder(folder)
    lines = [f"{problem.kind:10} {problem.message}" for problem in checked.differences]
    for finding in checked.findings:
        lines += [f"{finding.rule} {finding.severity} {finding.path}", f"    {finding.message}", f"    {finding.fix}"]
    report.result({"folder": str(folder), **asdict(checked)}, [*lines, checked.summary])
    if checked.differences:
        raise LintFailed(
            f"{folder} is not as `hfx deploy {checked.target}` wrote it: {len(checked.differences)} files differ.",
            "Write it again with --force, or keep your changes elsewhere.",
        )
    if checked.errors:
        raise LintFailed(f"{folder} breaks the rules in {checked.errors} places.", "Each finding says what to do.")


def _check_server(report: Reporter, url: str, names: Sequence[str], options: ServerOptions) -> None:
    from hfx.repository import models

    repository = options.repository or Path("model_repository")
    chosen = names or [entry.name for entry in models(repository) if entry.manifest]
    if not chosen:
        raise UsageError(f"There is no model in {repository}.", "Give --repository DIR with the published models.")
    with connect(options.connection(url)) as client:
        if options.wait is not None:
            client.wait_ready(options.wait)
        checked = [_checked(report, client, repository, name, options) for name in chosen]
    failed = [each["name"] for each in checked if "error" in each]
    report.result({"url": url, "models": checked}, [_line(each) for each in checked])
    if failed:
        raise VerificationFailed(
            f"{', '.join(failed)} behind {url} does not answer like the checkpoint.",
            f"Check that the server serves the models of {repository} (`hfx lint`), and deploy them again.",
        )


def _checked(report: Reporter, client: Client, repository: Path, name: str, options: ServerOptions) -> dict[str, Any]:
    """What the comparison of one model gave: its figures, or the error."""
    from hfx.cli.verify import served_ask
    from hfx.exporter.verify import against_checkpoint, open_published

    with report.progress(f"Asking {name}"):
        published = open_published(repository, name)
        try:
            figures = against_checkpoint(
                published, served_ask(client, repository, name), options.device or "cpu", options.max_drop
            )
        except VerificationFailed as error:
            return {"name": name, "error": error.message}
    return {"name": name, **figures}


def _line(checked: dict[str, Any]) -> str:
    from hfx.cli.verify import agreement

    if "error" in checked:
        return f"{checked['name']}: {checked['error']}"
    return f"{checked['name']}: {checked['requests']} requests, {agreement(checked)}"
