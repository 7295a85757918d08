"""A published generator verified again: against the texts recorded from its checkpoint, and on labelled data.

Whoever calls says how the model is asked (in this process, through a server); nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx import names
from hfx.errors import UsageError, VerificationFailed
from hfx.exporter.generation.data import DEFAULTS, METRICS
from hfx.exporter.generation.gate import same_texts
from hfx.exporter.generation.limits import DEFAULT_MAX_DROP
from hfx.exporter.generation.tasks import GenerationTask, find_generation_task
from hfx.exporter.parity.data import read_data
from hfx.exporter.parity.recorded import FILE, Recorded, read_recorded
from hfx.exporter.tasks.task import Answer, Request
from hfx.exporter.verify import DataOptions
from hfx.manifest import Manifest
from hfx.repository.catalog import model as read_model

ALONE = 8  # requests that are also asked one by one

Ask = Callable[[Sequence[Request]], list[Answer]]


@dataclass(frozen=True)
class PublishedGenerator:
    """A generator of a repository: manifest, task, and the texts of its checkpoint."""

    manifest: Manifest
    task: GenerationTask
    recorded: Recorded


def open_published(repository: Path, name: str) -> PublishedGenerator:
    """NAME in `repository`; RepositoryError where it is missing or damaged."""
    manifest = read_model(repository, name)
    return PublishedGenerator(manifest, find_generation_task(manifest.task), read_recorded(repository / name / FILE))


def against_checkpoint(published: PublishedGenerator, ask: Ask, device: str, max_drop: float | None) -> dict[str, Any]:
    """The share of the checkpoint's texts; VerificationFailed where it has fallen since the export.

    What the export measured is the measure: a quantized model parts from some of the checkpoint's texts by nature.
    Where answers were the same to the last bit of their log-probabilities in any batch, they must be so again.
    """
    measured: Any = published.manifest.parity.get(device)
    if measured is None:
        raise UsageError(f"{published.manifest.name} was not built for {device}.", "Verify it on the other device.")
    requests = [{**request, names.RETURN_LOG_PROBS: True} for request in published.recorded.requests]
    answers = ask(requests)
    alone = range(0, len(requests), -(-len(requests) // ALONE))
    other = sum(ask([requests[i]])[0] != answers[i] for i in alone)
    if other and _was_the_same(measured):
        raise VerificationFailed(
            f"{other} of {len(alone)} answers of {published.manifest.name} have other log-probabilities alone than "
            "together with others.",
            "Serve it by the runtime onnxruntime (docs/generation-serving.md), or export it again on this processor.",
        )
    figures = {**same_texts(answers, published.recorded), "alone": len(alone), "other_alone": other}
    then = _at_export(measured)
    drop = DEFAULT_MAX_DROP if max_drop is None else max_drop
    if then is not None and not figures["same"] >= then - drop:
        raise VerificationFailed(
            f"{published.manifest.name} gives {figures['same']:.4f} of the checkpoint's {figures['requests']} texts; "
            f"at its export it gave {then:.4f} (at least {then - drop:.4f} are asked).",
            "Check that the server serves this repository (`hfx lint`), or export again.",
        )
    return {**figures, "at_export": then, "precision": measured["precision"]}


def _was_the_same(measured: dict[str, Any]) -> bool:
    """Whether no text had other log-probabilities in another batch at the export, in any runtime that may serve."""
    runtimes = (measured, *measured.get("reserve", {}).values())
    wholes = (each.get(way) for each in runtimes for way in ("greedy", "beams"))
    return not any(whole["company"] for whole in wholes if whole)


def _at_export(measured: dict[str, Any]) -> float | None:
    """The share of the checkpoint's texts at the export, of the runtime that has fewer of them: either may serve."""
    runtimes = (measured, *measured.get("reserve", {}).values())
    # Files for a GPU that were compared on a CPU were not asked as texts.
    shares = [(each.get("texts") or each.get("greedy") or {}).get("same") for each in runtimes]
    return min((share for share in shares if share is not None), default=None)


def on_data(published: PublishedGenerator, ask: Ask, options: DataOptions) -> dict[str, Any]:
    """A metric on the user's data; VerificationFailed below --min, or too far below the checkpoint's."""
    task = published.task
    metric = options.metric or task.metric_name
    if metric not in METRICS:
        raise UsageError(f"{task.task} is not measured by {metric}.", f"Choose one of {', '.join(METRICS)}.")
    data = read_data(options.path, task, {}, options.input_columns, options.target_column)
    answers = ask([{**request, **DEFAULTS} for request in data.requests])
    value = METRICS[metric]([answer[names.TEXT_OUTPUT] for answer in answers], data.targets)
    least, reason = _least(published, options, metric)
    if least is not None and not value >= least:  # NaN fails
        raise VerificationFailed(
            f"{metric} of {published.manifest.name} on {options.path.name} is {value:.4f}, below {least:.4f} "
            f"({reason}).",
            "Export another precision, or accept less.",
        )
    return {"file": options.path.name, "metric": metric, "rows": len(data.targets), "value": value}


def _least(published: PublishedGenerator, options: DataOptions, metric: str) -> tuple[float | None, str]:
    """What the metric must reach, and why."""
    if options.minimum is not None:
        return options.minimum, "--min"
    measured: Any = published.manifest.parity.get("data") or {}
    then = measured.get(options.path.name, {})
    if then.get("metric") != metric:
        if options.max_drop is not None:
            raise UsageError(
                f"The checkpoint's {metric} was not measured on {options.path.name}, so a drop can't be told.",
                f"Export with --verify-data {options.path.name}, or use --min.",
            )
        return None, ""
    drop = DEFAULT_MAX_DROP if options.max_drop is None else options.max_drop
    return float(then["torch"]) - drop, f"the checkpoint's {then['torch']:.4f} less {drop:g}"
