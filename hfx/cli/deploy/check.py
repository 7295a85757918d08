"""`hfx deploy check`: compare a folder with its record, or a server with the checkpoints of its models."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument

from hfx.cli.commands import flag, given, grouped
from hfx.cli.connection import DEFAULT_REPOSITORY, Connection, connect
from hfx.cli.output import Reporter, counted, reporter
from hfx.cli.serve_options import Device
from hfx.errors import LintFailed, UsageError, VerificationFailed
from hfx.names import GENERATION_TASKS
from hfx.options import option

if TYPE_CHECKING:
    from hfx.client import Client
    from hfx.deploy.check import Checked
    from hfx.deploy.server_check import Dialect
    from hfx.exporter.verify import Infer, Published

ADDRESS = re.compile(r"[a-z]+://.+|[^/]+:[0-9]+")


@dataclass(frozen=True)
class ServerOptions:
    """The options for a server: how to connect to it, and the models to compare it with."""

    repository: Path | None = option(
        None, "URL: repository of the models that it should serve. Default: model_repository.", metavar="DIR"
    )
    through: Literal["v2", "openai", "huggingface", "tei", "mlserver"] | None = option(
        None, "URL: API to send requests through. Default: v2, Triton's own."
    )
    device: Device | None = option(None, "URL: device of the server. Default: cpu.")
    max_drop: float | None = option(
        None, "URL: largest share of answers that may differ from the checkpoint's.", metavar="SHARE"
    )
    wait: float | None = option(
        None, "URL: time to wait until the server is ready. Default: do not wait.", metavar="SECONDS"
    )
    timeout: float | None = option(None, "URL: time limit for each answer. Default: 60.", metavar="SECONDS")
    header: list[str] | None = option(None, "URL: header to send. Repeatable.", metavar="KEY:VALUE")
    token_file: Path | None = option(
        None, "URL: file with the bearer token (API key). Default: HFX_TOKEN of the environment.", metavar="FILE"
    )
    tls_ca: Path | None = option(None, "URL: file with the certificates to trust (PEM).", metavar="FILE")

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the requests; None for Triton's own protocol."""
        return None if self.through is None or self.through == "v2" else self.through

    def connection(self, url: str) -> Connection:
        """Return the connection to `url` with these options."""
        return Connection(url, timeout=self.timeout, header=self.header, token_file=self.token_file, tls_ca=self.tls_ca)


@grouped
def command(
    context: typer.Context,
    target: Annotated[
        str,
        Argument(metavar="DIR|URL", help="Folder written by `hfx deploy`, or address of a server."),
    ],
    server: ServerOptions,
    names: Annotated[
        list[str] | None, Argument(metavar="NAME", help="URL: models to check. Default: all in the repository.")
    ] = None,
) -> None:
    """Check a folder, or compare a server's answers with the checkpoints'.

    A folder is checked for changed files, and SageMaker's calls for mistakes; failures exit with 7. Differing answers
    of a server exit with 4.

    Examples:
      hfx deploy check bundle
      hfx deploy check 127.0.0.1:8001 sentiment --wait 60
      hfx deploy check http://127.0.0.1:8000 sentiment --through huggingface
    """
    report = reporter(context)
    if not target.strip():
        raise UsageError("The folder or server has no name.", "Give a folder of `hfx deploy`, or a server's address.")
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
    lines += [line for finding in checked.findings for line in finding.lines()]
    report.result({"folder": str(folder), **asdict(checked)}, [*lines, _summary(checked)])
    if checked.differences:
        raise LintFailed(
            f"{folder} is not as `hfx deploy {checked.target}` wrote it.",
            "Each difference is above. Write the folder again with --force, or keep your changes elsewhere.",
        )
    if checked.errors:
        raise LintFailed(
            f"The calls in {folder} have {counted(checked.errors, 'mistake')}.", "Each finding says what to do."
        )


def _summary(checked: Checked) -> str:
    compared = f"{counted(checked.files, 'file')} compared with the record of `hfx deploy {checked.target}`"
    findings = f", {counted(len(checked.findings), 'finding')} in the calls" if checked.findings else ""
    return f"{compared}: {counted(len(checked.differences), 'difference')}{findings}."


def _check_server(report: Reporter, url: str, names: Sequence[str], options: ServerOptions) -> None:
    """Compare the models `names` (empty: all of the repository) and print the figures. Raises VerificationFailed."""
    from hfx.exporter.verify import open_published
    from hfx.repository import models

    repository = options.repository or DEFAULT_REPOSITORY
    chosen = names or [entry.name for entry in models(repository) if entry.manifest]
    if not chosen:
        raise UsageError(f"There is no model in {repository}.", "Give --repository DIR with the published models.")
    published = [open_published(repository, name) for name in chosen]
    with connect(options.connection(url)) as client:
        infer_of = _infer_of(client, repository, published, options)
        if options.wait is not None:
            client.wait_ready(options.wait)
        for name in chosen:
            client.metadata(name)  # for a missing model, its error names the models that exist
        checked = []
        for model in published:
            with report.progress(f"Checking {model.manifest.name}"):
                checked.append(_compared(model, infer_of(model), options))
    report.result(
        {"url": url, "through": options.through or "v2", "models": checked}, [_line(figures) for figures in checked]
    )
    if failed := [figures["name"] for figures in checked if "error" in figures]:
        raise VerificationFailed(
            f"{', '.join(failed)} behind {url} does not answer like the checkpoint.",
            f"Check that the server serves the models of {repository} (`hfx lint`), and deploy them again.",
        )


def _infer_of(
    client: Client, repository: Path, published: Sequence[Published], options: ServerOptions
) -> Callable[[Published], Infer]:
    """Return a function from a model to the function that queries it: by Triton's protocol, or in a dialect."""
    from hfx.cli.verify import served_infer
    from hfx.deploy.server_check import check_models, dialect_infer

    if (dialect := options.dialect) is None:
        return lambda model: served_infer(client, repository, model.manifest.name)
    check_models(dialect, published)
    return partial(dialect_infer, client, dialect)


def _compared(model: Published, infer: Infer, options: ServerOptions) -> dict[str, Any]:
    """Compare one model with its checkpoint. Returns the figures, or an `error`, as JSON."""
    from hfx.deploy.server_check import UNCOMPARED
    from hfx.exporter.verify import against_checkpoint

    name = model.manifest.name
    try:
        figures = against_checkpoint(model, infer, options.device or "cpu", options.max_drop)
    except VerificationFailed as error:
        return {"name": name, "error": error.message}
    is_less = options.dialect and model.task.task in GENERATION_TASKS
    return {"name": name, **figures, **({"not_compared": list(UNCOMPARED)} if is_less else {})}


def _line(figures: dict[str, Any]) -> str:
    from hfx.cli.verify import agreement

    if "error" in figures:
        return f"{figures['name']}: {figures['error']}"
    left_out = f" ({', '.join(figures['not_compared'])} not compared)" if "not_compared" in figures else ""
    return f"{figures['name']}: {agreement(figures)}{left_out}"
