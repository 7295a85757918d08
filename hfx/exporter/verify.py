"""Verify a published model again: against the recorded answers of its checkpoint, and on labelled data.

The export writes the checkpoint's answers in the gate to reference.json, beside the model, so neither the checkpoint
nor torch is needed. A function sends requests to the model, in this process or through a server.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hfx import names
from hfx.errors import ModelCorrupt, UsageError, VerificationFailed
from hfx.exporter.encoder.gate import accuracy_of, limits, one_line
from hfx.exporter.encoder.kinds import BY_KIND, EncoderKind
from hfx.exporter.encoder.kinds.kind import Answer, Comparison, Request
from hfx.exporter.generation.tasks import DATA_SETTINGS, GenerationTask, find_generation_task
from hfx.exporter.labelled_data import read_data
from hfx.exporter.options import DEFAULT_MAX_DROP
from hfx.exporter.plan import Plan
from hfx.exporter.ranking import NDCG, rank_correlation
from hfx.local.models import published_metadata
from hfx.manifest import Manifest
from hfx.repository.catalog import model as read_model
from hfx.tasks import kind_of

REFERENCE_FILE = "reference.json"
FORMAT = 1
SHOWN = 3  # at most this many different answers are shown
ALONE = 8  # requests of a generator that are also run one by one
# In the figures on the user's data, by device: the number of answers by which a caller would decide otherwise, and the
# expected calibration error of a classifier.
OTHER_DECISIONS, CALIBRATION = "other_decisions", "calibration_error"
UNCALIBRATED = "calibration_error_before"  # before --calibrate
Infer = Callable[[Sequence[Request]], list[Answer]]


@dataclass(frozen=True)
class Recorded:
    """Requests, and the checkpoint's answer in torch to each of them."""

    requests: tuple[Request, ...]
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Published:
    """A model of a repository.

    `labels` and `activation` are those of its last step, and empty if it has none. `kind` is None for a generator.
    """

    manifest: Manifest
    task: EncoderKind | GenerationTask
    kind: names.Kind | None
    labels: tuple[str, ...]
    activation: str
    recorded: Recorded


@dataclass(frozen=True)
class DataOptions:
    """The file of labelled data, its columns, and the metric with its limits."""

    path: Path
    input_columns: tuple[str, ...] = ()
    target_column: str | None = None
    metric: str | None = None
    minimum: float | None = None
    max_drop: float | None = None


def write_recorded(recorded: Recorded, path: Path) -> None:
    """Write `recorded` as JSON, with one request on each line."""
    pairs = zip(recorded.requests, recorded.answers, strict=True)
    lines = [json.dumps({"request": r, "answer": a}, ensure_ascii=True) for r, a in pairs]
    rows = ",\n".join(lines)
    path.write_text(f'{{"format": {FORMAT}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def read_recorded(path: Path) -> Recorded:
    """Read a reference.json. Raises ModelCorrupt if it is missing or damaged."""
    try:
        value: Any = json.loads(path.read_bytes())
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}")
        rows = [(dict(row["request"]), dict(row["answer"])) for row in value["rows"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelCorrupt(
            f"{path} can't be read: {error!r}.", "Export the model again with --force; it records the answers."
        ) from error
    return Recorded(tuple(r for r, _ in rows), tuple(a for _, a in rows))


def open_published(repository: Path, name: str) -> Published:
    """Open the model `name` in `repository`. Raises RepositoryError if it is missing or damaged."""
    manifest, metadata = read_model(repository, name), published_metadata(repository, name)
    settings = repository / (name + names.POSTPROCESS_SUFFIX) / "1" / "settings.json"
    values = json.loads(settings.read_bytes()) if settings.is_file() else {}
    labels, activation = tuple(values.get("labels", ())), values.get("activation", "")
    kind = kind_of(metadata, manifest.task)
    task: EncoderKind | GenerationTask
    if kind is None:
        task = find_generation_task(manifest.task)
    else:
        task = BY_KIND[kind].published(labels, names.PROMPT_NAME in metadata.input_types)
    recorded = read_recorded(repository / name / REFERENCE_FILE)
    return Published(manifest, task, kind, labels, activation, recorded)


@dataclass(frozen=True)
class Rerun:
    """The model's answers to the recorded requests, and those to some of them run one by one: index -> answer."""

    answers: Sequence[Answer]
    alone: Mapping[int, Answer]

    @property
    def other_alone(self) -> int:
        """The number of requests whose answer alone differs from the answer in a batch."""
        return sum(answer != self.answers[index] for index, answer in self.alone.items())


def run_again(published: Published, infer: Infer, alone: int) -> Rerun:
    """Run the recorded requests, and at most `alone` of them also one by one. Generators return log-probabilities."""
    requests = published.recorded.requests
    if isinstance(published.task, GenerationTask):
        requests = tuple({**request, names.RETURN_LOG_PROBS: True} for request in requests)
    chosen = range(0, len(requests), -(-len(requests) // alone)) if alone else ()
    return Rerun(infer(requests), {index: infer([requests[index]])[0] for index in chosen})


def against_checkpoint(published: Published, infer: Infer, device: str, max_drop: float | None) -> dict[str, Any]:
    """Compare the model with the checkpoint's recorded answers.

    Raises VerificationFailed if the model does not answer as when it was exported, and UsageError if it was not built
    for `device`.
    """
    if getattr(published.manifest.precision, device) is None:
        raise UsageError(f"{published.manifest.name} was not built for {device}.", "Verify it on the other device.")
    rerun = run_again(published, infer, 0 if published.kind else ALONE)
    figures = figures_of(published, rerun, device, max_drop)
    judge(published, rerun, figures)
    return figures


def figures_of(published: Published, rerun: Rerun, device: str, max_drop: float | None) -> dict[str, Any]:
    """Return how far the answers agree with the recorded answers, and the `limits` of these figures."""
    precision: Any = getattr(published.manifest.precision, device)
    if isinstance(published.task, EncoderKind):
        allowed = limits(accuracy_of(published.manifest, device), max_drop)
        figures = _of_answers(published, published.task, rerun.answers)
        figures["limits"] = {"agreement": allowed.agreement, "mean_drift": allowed.drift}
    else:
        drop = DEFAULT_MAX_DROP if max_drop is None else max_drop
        figures = _of_texts(published.recorded, rerun, published.manifest.parity[device], drop)
    return {**figures, "precision": precision}


def _of_answers(published: Published, task: EncoderKind, answers: Sequence[Answer]) -> dict[str, Any]:
    recorded, compared = published.recorded, comparisons(published, answers)
    figures = {
        "requests": len(answers),
        "agreement": sum(comparison.same for comparison in compared) / len(compared),
        "ties": sum(comparison.tie for comparison in compared) / len(compared),
        "mean_drift": float(np.mean([comparison.drift for comparison in compared])),
    }
    ranks = rank_correlation(task, recorded.requests, recorded.answers, answers)
    return figures if ranks is None else {**figures, "rank_correlation": ranks}


def _of_texts(recorded: Recorded, rerun: Rerun, at_export: Any, drop: float) -> dict[str, Any]:
    """Return the share of texts that equal the checkpoint's.

    Its limit depends on the share that the export measured, because a quantized model inevitably departs from some of
    the checkpoint's texts. If the log-probabilities of answers were the same in any batch, to the last bit, they must
    be so again.
    """
    share, figures = share_at_export(at_export), same_texts(rerun.answers, recorded)
    least = {} if share is None else {"same": share - drop}
    most = {"other_alone": 0} if was_batch_invariant(at_export) else {}
    alone = {"alone": len(rerun.alone), "other_alone": rerun.other_alone}
    return {**figures, **alone, "at_export": share, "limits": {**least, **most}}


def comparisons(published: Published, answers: Sequence[Answer]) -> list[Comparison]:
    """Compare each answer with the recorded answer. Texts of a generator have no scores, so that their drift is 0."""
    if isinstance(published.task, GenerationTask):
        return [Comparison(not other, 0.0) for other in other_texts(answers, published.recorded)]
    return [published.task.compare(*pair) for pair in zip(published.recorded.answers, answers, strict=True)]


def judge(published: Published, rerun: Rerun, figures: Mapping[str, Any]) -> None:
    """Raise VerificationFailed if `figures` (see `figures_of`) are beyond their limits."""
    judge_kind = _judge_answers if isinstance(published.task, EncoderKind) else _judge_texts
    judge_kind(published, rerun.answers, figures, figures["limits"])


def _judge_answers(
    published: Published, answers: Sequence[Answer], figures: Mapping[str, Any], limit: Mapping[str, float]
) -> None:
    share, ties, drift = (figures[name] for name in ("agreement", "ties", "mean_drift"))
    if not (share + ties >= limit["agreement"] and drift <= limit["mean_drift"]):
        compared = comparisons(published, answers)
        far = [comparison.differs for comparison in compared]
        if not any(far):
            far = [not comparison.drift <= limit["mean_drift"] for comparison in compared]
        raise VerificationFailed(
            f"{published.manifest.name} does not answer like its checkpoint on {len(answers)} requests: "
            f"agreement {share:.4f} and {ties:.4f} ties (at least {limit['agreement']:.4f}), "
            f"mean score drift {drift:.2e} (at most {limit['mean_drift']:.2e})."
            + first_differences(published, answers, far),
            "Check that the server serves this repository (`hfx lint`), or export again.",
        )


def _judge_texts(
    published: Published, answers: Sequence[Answer], figures: Mapping[str, Any], limit: Mapping[str, float]
) -> None:
    if figures["other_alone"] > limit.get("other_alone", math.inf):
        raise VerificationFailed(
            f"{figures['other_alone']} of {figures['alone']} answers of {published.manifest.name} have other "
            "log-probabilities alone than together with others.",
            "Serve it by the runtime onnxruntime (docs/generation-serving.md), or export it again on this processor.",
        )
    if not figures["same"] >= limit.get("same", 0.0):
        raise VerificationFailed(
            f"{published.manifest.name} gives {figures['same']:.4f} of the checkpoint's {figures['requests']} texts; "
            f"at its export it gave {figures['at_export']:.4f} (at least {limit['same']:.4f} are asked)."
            + first_differences(published, answers, other_texts(answers, published.recorded)),
            "Check that the server serves this repository (`hfx lint`), or export again.",
        )


def same_texts(answers: Sequence[Answer], recorded: Recorded) -> dict[str, Any]:
    """Return the number of requests, and the share of answers whose text is the recorded text."""
    same = len(recorded.answers) - sum(other_texts(answers, recorded))
    return {"requests": len(recorded.answers), "same": same / len(recorded.answers)}


def other_texts(answers: Sequence[Answer], recorded: Recorded) -> list[bool]:
    """Return for each answer whether its text differs from the recorded text."""
    pairs = zip(answers, recorded.answers, strict=True)
    return [answer[names.TEXT_OUTPUT] != known[names.TEXT_OUTPUT] for answer, known in pairs]


def first_differences(published: Published, answers: Sequence[Answer], differs: Sequence[bool]) -> str:
    """Return lines with the first answers that differ, each with its request and the checkpoint's answer."""
    rows = zip(published.recorded.requests, published.recorded.answers, answers, strict=True)
    lines = [
        f"\n  {one_line(request)}: the checkpoint {one_line({key: known[key] for key in known if key in answer})}, "
        f"the model {one_line({key: answer[key] for key in known if key in answer})}"
        for (request, known, answer), is_other in zip(rows, differs, strict=True)
        if is_other
    ]
    return "".join(lines[:SHOWN])


def was_batch_invariant(parity: dict[str, Any]) -> bool:
    """Whether, at the export, no text's log-probabilities depended on its batch, in any runtime that may serve."""
    runtimes = (parity, *parity.get("reserve", {}).values())
    wholes = (each.get(way) for each in runtimes for way in ("greedy", "beams"))
    # Manifests written by earlier versions call this number `company`.
    return not any(whole.get("batch_variants", whole.get("company")) for whole in wholes if whole)


def share_at_export(parity: dict[str, Any]) -> float | None:
    """Return the share of the checkpoint's texts at the export; the least of all runtimes, as any of them may serve."""
    runtimes = (parity, *parity.get("reserve", {}).values())
    # Files for a GPU that were compared on a CPU have no figures for texts.
    shares = [(each.get("texts") or each.get("greedy") or {}).get("same") for each in runtimes]
    return min((share for share in shares if share is not None), default=None)


def measured(published: Published, infer: Infer, options: DataOptions) -> dict[str, Any]:
    """Return a metric on the user's data, a classifier's calibration error, and what the export measured, if it did.

    Raises UsageError if the task is not measured by `options.metric`.
    """
    task = published.task
    config = {"id2label": {str(i): label for i, label in enumerate(published.labels)}}
    data = read_data(options.path, task, config, options.input_columns, options.target_column)
    settings = DATA_SETTINGS if isinstance(task, GenerationTask) else {}
    metrics = [NDCG] if data.queries else [*task.metrics]
    metric = options.metric or (task.metric_name if task.metric_name in metrics else metrics[0])
    if metric not in metrics:
        raise UsageError(f"{task.task} is not measured by {metric} here.", f"Choose {' or '.join(metrics)}.")
    answers = infer([{**request, **settings} for request in data.requests])
    if isinstance(task, EncoderKind) and data.queries:
        value = data.measured(task, answers)
    else:
        value = task.metrics[metric](answers, data.targets)
    figures = {"file": options.path.name, "metric": metric, "rows": len(data.targets), "value": value}
    error = task.calibration_error(answers, data.targets) if isinstance(task, EncoderKind) else None
    parity: Any = published.manifest.parity
    more = {CALIBRATION: error, "at_export": (parity.get("data") or {}).get(options.path.name)}
    return figures | {key: value for key, value in more.items() if value is not None}


def judge_data(published: Published, options: DataOptions, figures: Mapping[str, Any]) -> None:
    """Raise VerificationFailed if the metric is below --min, or too far below the checkpoint's metric."""
    metric, value = figures["metric"], figures["value"]
    least, reason = _least(options, metric, figures.get("at_export", {}))
    if least is not None and not value >= least:  # NaN fails
        raise VerificationFailed(
            f"{metric} of {published.manifest.name} on {options.path.name} is {value:.4f}, below {least:.4f} "
            f"({reason}).",
            "Export another precision, or accept less.",
        )


def _least(options: DataOptions, metric: str, at_export: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return the least value that the metric must reach (None: no limit), and the reason."""
    if options.minimum is not None:
        return options.minimum, "--min"
    if at_export.get("metric") != metric:
        if options.max_drop is not None:
            raise UsageError(
                f"The checkpoint's {metric} was not measured on {options.path.name}, so there is no drop to compare.",
                f"Export with --verify-data {options.path.name}, or use --min.",
            )
        return None, ""
    drop = DEFAULT_MAX_DROP if options.max_drop is None else options.max_drop
    return float(at_export["torch"]) - drop, f"the checkpoint's {at_export['torch']:.4f} less {drop:g}"


def check_drop(plan: Plan, metric: str, file: str, device: str, torch: float, value: float) -> None:
    """Raise VerificationFailed, at the export, if the `metric` on `file` is too far below the checkpoint's."""
    drop = DEFAULT_MAX_DROP if plan.max_drop is None else plan.max_drop
    if not torch - value <= drop:  # NaN fails
        raise VerificationFailed(
            f"{metric} on {file} falls from {torch:.4f} (torch) to {value:.4f} ({device}), by more than {drop:g}.",
            "Nothing was published. Use another --precision, or accept more with --max-drop.",
        )
