"""A published model verified again: against the answers recorded from its checkpoint, and on labelled data.

Whoever calls says how the model is asked (in this process, through a server); nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hfx import names
from hfx.errors import UsageError, VerificationFailed
from hfx.exporter.parity.data import read_data
from hfx.exporter.parity.gate import DEFAULT_MAX_DROP, limits
from hfx.exporter.parity.recorded import FILE, Recorded, read_recorded
from hfx.exporter.tasks import EncoderTask, find_task
from hfx.exporter.tasks.task import Answer, Request
from hfx.manifest import Manifest
from hfx.repository.catalog import model as read_model

Ask = Callable[[Sequence[Request]], list[Answer]]


@dataclass(frozen=True)
class Published:
    """A model of a repository: manifest, task, and the label names of its last step (empty where it has none)."""

    manifest: Manifest
    task: EncoderTask
    labels: tuple[str, ...]
    recorded: Recorded


@dataclass(frozen=True)
class DataOptions:
    """Where the data is and what is asked of it."""

    path: Path
    input_columns: tuple[str, ...] = ()
    target_column: str | None = None
    metric: str | None = None
    minimum: float | None = None
    max_drop: float | None = None


def open_published(repository: Path, name: str) -> Published:
    """NAME in `repository`; RepositoryError where it is missing or damaged."""
    manifest = read_model(repository, name)
    settings = repository / (name + names.POSTPROCESS_SUFFIX) / "1" / "settings.json"
    labels = json.loads(settings.read_bytes()).get("labels", []) if settings.is_file() else []
    recorded = read_recorded(repository / name / FILE)
    return Published(manifest, find_task(manifest.task), tuple(labels), recorded)


def against_checkpoint(published: Published, ask: Ask, device: str, max_drop: float | None) -> dict[str, Any]:
    """Agreement with the checkpoint's recorded answers; VerificationFailed beyond the limits of the precision."""
    precision: Any = getattr(published.manifest.precision, device)
    if precision is None:
        raise UsageError(f"{published.manifest.name} was not built for {device}.", "Verify it on the other device.")
    answers = ask(published.recorded.requests)
    compared = [published.task.compare(a, b) for a, b in zip(published.recorded.answers, answers, strict=True)]
    agreement = sum(comparison.same for comparison in compared) / len(compared)
    ties = sum(comparison.tie for comparison in compared) / len(compared)
    drift = float(np.mean([comparison.drift for comparison in compared]))
    limit = limits(precision, max_drop)
    figures = {
        "requests": len(answers),
        "agreement": agreement,
        "ties": ties,
        "mean_drift": drift,
        "precision": precision,
    }
    if not (agreement + ties >= limit.agreement and drift <= limit.drift):
        raise VerificationFailed(
            f"{published.manifest.name} does not answer like its checkpoint on {len(answers)} requests: "
            f"agreement {agreement:.4f} and {ties:.4f} ties (at least {limit.agreement:.4f}), "
            f"mean score drift {drift:.2e} (at most {limit.drift:.2e}).",
            "Check that the server serves this repository (`hfx lint`), or export again.",
        )
    return figures


def on_data(published: Published, ask: Ask, options: DataOptions) -> dict[str, Any]:
    """The task's metric on the user's data; VerificationFailed below --min, or too far below the checkpoint's."""
    task = published.task
    if options.metric not in (None, task.metric_name):
        raise UsageError(f"{task.task} is measured by {task.metric_name}.", f"Leave --metric {options.metric} out.")
    config = {"id2label": {str(i): label for i, label in enumerate(published.labels)}}
    data = read_data(options.path, task, config, options.input_columns, options.target_column)
    value = task.metric(ask(data.requests), data.targets)
    figures = {"file": options.path.name, "metric": task.metric_name, "rows": len(data.targets), "value": value}
    least, reason = _least(published, options)
    if least is not None and not value >= least:  # NaN fails
        raise VerificationFailed(
            f"{task.metric_name} of {published.manifest.name} on {options.path.name} is {value:.4f}, below {least:.4f} "
            f"({reason}).",
            "Export another precision, or accept less.",
        )
    return figures


def _least(published: Published, options: DataOptions) -> tuple[float | None, str]:
    """What the metric must reach, and why."""
    if options.minimum is not None:
        return options.minimum, "--min"
    measured: Any = published.manifest.parity.get("data") or {}
    torch = measured.get(options.path.name, {}).get("torch")
    if torch is None:
        if options.max_drop is not None:
            raise UsageError(
                f"The checkpoint was not measured on {options.path.name}, so a drop can't be told.",
                f"Export with --verify-data {options.path.name}, or use --min.",
            )
        return None, ""
    drop = DEFAULT_MAX_DROP if options.max_drop is None else options.max_drop
    return float(torch) - drop, f"the checkpoint's {torch:.4f} less {drop:g}"
