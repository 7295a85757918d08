"""`hfx deploy check`: a folder against its record and by rules, or a server against the checkpoints of its models."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from hfx.cli.commands import flag, given, grouped
from hfx.cli.connection import Connection
from hfx.cli.deploy.dialects import Dialect
from hfx.cli.output import Reporter, reporter
from hfx.cli.serve_options import Device
from hfx.errors import LintFailed, UsageError

ADDRESS = re.compile(r"[a-z]+://.+|[^/]+:[0-9]+")


@dataclass(frozen=True)
class ServerOptions:
    """How a server is reached, and what it is compared with."""

    repository: Annotated[
        Path | None, Option(help="URL: the published models that it should serve; model_repository without it.")
    ] = None
    through: Annotated[
        Literal["v2", "openai", "huggingface", "tei", "mlserver"] | None,
        Option(help="URL: the API to send requests through (docs/dialects.md); v2, Triton's own, without it."),
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

    @property
    def dialect(self) -> Dialect | None:
        """The dialect to ask in; None for Triton's own protocol."""
        return None if self.through is None or self.through == "v2" else self.through

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
      hfx deploy check http://127.0.0.1:8000 sentiment --through huggingface
    """
    report = reporter(context)
    if ADDRESS.fullmatch(target) and not Path(target).is_dir():
        from hfx.cli.deploy.check_server import check_server

        check_server(report, target, names or [], server)
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
