"""`hfx list`: the models of a repository, with what was measured when they were published."""

from __future__ import annotations

from typing import Any

import typer

from hfx.cli.connection import DEFAULT_REPOSITORY, RepositoryArgument
from hfx.cli.output import reporter

COLUMNS = ("NAME", "TASK", "CPU", "RUNTIME", "GPU", "MB", "AGREEMENT", "CREATED", "PROBLEM")


def command(
    context: typer.Context,
    repository: RepositoryArgument = DEFAULT_REPOSITORY,
) -> None:
    """List the models of a repository: task, precision, size, agreement with the checkpoint.

    Examples:
      hfx list
      hfx list /srv/models --json
    """
    from hfx.repository import recover
    from hfx.repository.catalog import models

    report = reporter(context)
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
    """The runtime that computes on the CPU; None where nothing does, or an older version did not say."""
    runtime = choice.get("runtime") if isinstance(choice, dict) else None
    return str(runtime) if runtime else None


def _agreement(figures: Any) -> float | None:
    """The share of equal answers on a device; None where it was not measured, or the manifest has something else."""
    share = figures.get("agreement") if isinstance(figures, dict) else None
    return share if isinstance(share, float) else None


def _row(entry: dict[str, Any]) -> tuple[object, ...]:
    if entry["task"] is None:
        return (entry["name"], "-", "-", "-", "-", "-", "-", "-", entry["problem"] or "not made by hfx")
    shares = {device: _agreement(entry["parity"].get(device)) for device in ("cpu", "gpu")}
    agreements = [f"{device} {100 * share:.1f} %" for device, share in shares.items() if share is not None]
    precision = entry["precision"]
    return (
        entry["name"],
        entry["task"],
        precision["cpu"] or "-",
        " ".join(filter(None, (entry["cpu_runtime"], "bf16" if entry["cpu_math"] == "bf16" else ""))) or "-",
        precision["gpu"] or "-",
        f"{entry['bytes'] / 1e6:.1f}",
        ", ".join(agreements) or "-",
        entry["created"].replace("T", " ").replace("Z", " UTC"),
        entry["problem"] or "",
    )
