"""`hfx list`, `lint`, `remove` and `reload`, for the models of a repository."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hfx.cli.connection import (
    DEFAULT_REPOSITORY,
    PublishedName,
    RepositoryArgument,
    RepositoryOption,
    chosen_repository,
    model_names,
)
from hfx.cli.export_summary import equal_share
from hfx.cli.output import counted, reporter
from hfx.deploy.options import Arch
from hfx.errors import LintFailed, RepositoryError, ServerError
from hfx.options import Option
from hfx.releases import MINIMUM_SECURE

COLUMNS = ("NAME", "TASK", "CPU AGREEMENT", "GPU AGREEMENT", "MB", "CREATED", "PROBLEM")


def list_(context: typer.Context, place: RepositoryArgument = None, repository: RepositoryOption = None) -> None:
    """List the models of a repository: task, precision, size, agreement with the checkpoint.

    Examples:
      hfx list
      hfx list /srv/models --json
    """
    from hfx.repository import recover
    from hfx.repository.catalog import models

    report, repository = reporter(context), chosen_repository(place, repository)
    for done in recover(repository):
        report.note(done)
    entries = [_entry(entry) for entry in models(repository)]
    value = {"repository": str(repository), "models": entries}
    if entries:
        has_problem = any(entry["problem"] or entry["task"] is None for entry in entries)
        shown = len(COLUMNS) if has_problem else len(COLUMNS) - 1
        report.table(value, COLUMNS[:shown], [_row(entry)[:shown] for entry in entries])
    else:
        report.result(value, f"There is no model in {repository}. `hfx export MODEL` publishes one.")


def _entry(entry: Any) -> dict[str, Any]:
    manifest = entry.manifest
    if manifest is None:
        return {"name": entry.name, "task": None, "problem": entry.problem}
    return {
        "name": manifest.name,
        "task": str(manifest.task),
        "precision": {"cpu": manifest.precision.cpu, "gpu": manifest.precision.gpu},
        "cpu_runtime": _runtime(manifest.choices.get("cpu_runtime")),
        "cpu_math": manifest.choices.get("cpu_math"),
        "bytes": sum(file.size for file in manifest.files.values()),
        "parity": dict(manifest.parity),
        "source": manifest.source.id,
        "created": manifest.created,
        "problem": entry.problem,
    }


def _runtime(choice: Any) -> str | None:
    """Return the runtime on the CPU; None if there is none, or an older version of hfx did not record it."""
    runtime = choice.get("runtime") if isinstance(choice, dict) else None
    return str(runtime) if runtime else None


def _row(entry: dict[str, Any]) -> tuple[object, ...]:
    if entry["task"] is None:
        return (entry["name"], "-", "-", "-", "-", "-", entry["problem"] or "not made by hfx")
    return (
        entry["name"],
        entry["task"],
        _built(entry, "cpu", entry["cpu_runtime"], "bf16" if entry["cpu_math"] == "bf16" else None),
        _built(entry, "gpu"),
        f"{entry['bytes'] / 1e6:.1f}",
        entry["created"].partition("T")[0],
        entry["problem"] or "",
    )


def _built(entry: dict[str, Any], device: str, *how: str | None) -> str:
    """Return the precision on a device, `how` it is computed, and the share of equal answers; `-` if not exported."""
    share = equal_share(entry["parity"].get(device))
    equal = None if share is None else f"{100 * share:.1f} %"
    return " ".join(filter(None, (entry["precision"][device], *how, equal))) or "-"


def lint(
    context: typer.Context,
    place: RepositoryArgument = None,
    repository: RepositoryOption = None,
    triton: Annotated[str, Option(help="Triton release that will serve it.", metavar="TAG")] = MINIMUM_SECURE,
    cores: Annotated[
        int | None, Option(help="Cores of the machine that will serve it. Default: those of this machine.")
    ] = None,
    arch: Annotated[Arch | None, Option(help="Processor that will serve it. Default: this machine's.")] = None,
) -> None:
    """Check a model repository against hfx's rules, without a server.

    Examples:
      hfx lint
      hfx lint /srv/models --triton 26.07 --cores 8 --arch arm64
    """
    from hfx.deploy.arch import MACHINES, this_arch
    from hfx.repository.catalog import models
    from hfx.repository.lint import lint as find

    report, repository = reporter(context), chosen_repository(place, repository)
    findings = find(repository, triton, cores, MACHINES[arch or this_arch()])
    lines = [line for finding in findings for line in finding.lines()]
    value = {"repository": str(repository), "findings": [asdict(finding) for finding in findings]}
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    if not models(repository):
        report.warn(f"There is no model in {repository}.")
    report.result(value, [*lines, f"{counted(errors, 'error')}, {counted(warnings, 'warning')}."])
    if errors:
        raise LintFailed(
            f"{repository} breaks the rules in {counted(errors, 'place')}.", "Each finding above says what to do."
        )


def remove(
    context: typer.Context,
    name: PublishedName,
    repository: Annotated[Path, Option(help="Model repository.", metavar="DIR")] = DEFAULT_REPOSITORY,
    force: Annotated[bool, Option("--force", help="Unload the model first if it is being served.")] = False,
) -> None:
    """Delete a published model and all its folders.

    Examples:
      hfx remove sentiment
      hfx remove sentiment --force --repository /srv/models
    """
    from hfx.repository import model
    from hfx.repository import remove as delete
    from hfx.triton.commands import send, servers_of

    report = reporter(context)
    model(repository, name)  # raises when there is none
    serving = [path for path in servers_of(repository) if name in send(path, "status")["models"]]
    if serving and not force:
        raise RepositoryError(f"{name!r} is being served.", "Use --force to take it out of the server first.")
    for path in serving:
        send(path, "unload", [name])
    folders = delete(repository, name)
    report.result({"name": name, "folders": list(folders)}, [f"Deleted {', '.join(folders)}."])


def reload(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Models to reload. Default: all that were published again.",
            autocompletion=model_names,
        ),
    ] = None,
    repository: Annotated[Path, Option(help="Repository that is being served.", metavar="DIR")] = DEFAULT_REPOSITORY,
) -> None:
    """Reload models that were published again into a running `hfx serve`.

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
    with report.progress("Reloading"):
        outcomes = [outcome for path in servers for outcome in send(path, "reload", names or ())["outcomes"]]
    lines = [": ".join(filter(None, (each["model"], each["outcome"], each["reason"]))) for each in outcomes]
    report.result({"repository": str(repository), "models": outcomes}, lines or ["All models are served as published."])
    failed = [each["model"] for each in outcomes if each["outcome"] == "failed"]
    if failed:
        raise ServerError(
            f"Not reloaded: {', '.join(failed)}. The server keeps the former version, if it had one.",
            "The reasons are above. Correct them, then reload again.",
        )
