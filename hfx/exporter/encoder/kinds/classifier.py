"""Text classification: one label of several (softmax), several at once or a single one (sigmoid), or a regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from hfx import names
from hfx.errors import UsageError
from hfx.exporter.encoder.kinds.answers import stride
from hfx.exporter.encoder.kinds.kind import (
    Answer,
    Comparison,
    Config,
    EncoderKind,
    Request,
    Settings,
    labels_of,
    logits_of_labels,
)
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind, Task
from hfx.repository.config_pbtxt import TensorSpec

ALL_LABELS = 1_000_000  # top_k beyond the number of labels means all of them
BINS, THRESHOLD = 15, 0.5  # of scores
TIE = 0.02  # two scores of the checkpoint so close that neither label is wrong


@dataclass(frozen=True, kw_only=True)
class Classifier(EncoderKind):
    """Labels of a text, best first."""

    name: ClassVar[Kind] = Kind.CLASSIFIER
    plain_name: ClassVar[str] = "models with a head for labels"
    own_options: ClassVar[frozenset[str]] = frozenset({"calibrate", "threshold", "safe_label"})
    task: ClassVar[Task] = Task.TEXT_CLASSIFICATION
    architectures: ClassVar[tuple[str, ...]] = ("ForSequenceClassification",)
    outputs: ClassVar[tuple[TensorSpec, ...]] = (
        TensorSpec(names.LABEL, "TYPE_STRING", (-1,)),
        TensorSpec(names.SCORE, "TYPE_FP32", (-1,)),
    )
    item_rank: ClassVar[int] = 2
    token_outputs: ClassVar[tuple[TensorSpec, ...]] = (TensorSpec(names.WINDOW_TOKENS, "TYPE_INT32", (-1,)),)
    postprocess_reads: ClassVar[tuple[str, ...]] = (names.TOP_K, names.LONG, names.WINDOW_TOKENS)

    auto_class: str = "AutoModelForSequenceClassification"
    thresholds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        return {**super().fields(checkpoint, options), "thresholds": thresholds(options.threshold)}

    def notes(self, checkpoint: Checkpoint, options: ExportOptions) -> tuple[str, ...]:
        if options.task is None and len(labels_of(checkpoint.config)) == 1:
            return ("The one label will classify texts; to rank texts for a query, pass --task text-ranking.",)
        return ()

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        return logits_of_labels(config, -1)

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        return {"stride": stride(max_length)}

    def last_step_settings(self, config: Config) -> Settings:
        """Return the settings; by default an answer has one label, as the pipeline gives, unless `top_k` is sent."""
        return {"labels": labels_of(config), "activation": activation(config), "default_top_k": 1, "windows": True}

    def samples(self, texts: Sequence[str]) -> list[Request]:
        """Return a request for all labels of each text: a comparison needs to know how close the other labels are."""
        return [{names.TEXT_INPUT: text, names.TOP_K: ALL_LABELS} for text in texts]

    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        return compare(reference, answer)

    def metric(self, answers: Sequence[Answer], targets: Sequence[str]) -> float:
        """Return the share of answers whose first label is the target."""
        return fmean(a[names.LABEL][0] == target for a, target in zip(answers, targets, strict=True))

    def same_decision(self, reference: Answer, answer: Answer) -> bool:
        """Return whether the first labels are equal, and their scores are on one side of the label's threshold."""
        threshold = self.thresholds.get(reference[names.LABEL][0], self.thresholds.get("", THRESHOLD))
        sides = [float(each[names.SCORE][0]) >= threshold for each in (reference, answer)]
        return sides[0] == sides[1] and self.compare(reference, answer).same == 1

    def calibration_error(self, answers: Sequence[Answer], targets: Sequence[str]) -> float | None:
        """Return the expected calibration error of the first labels' scores (Guo et al., 2017), from 0 to 1.

        It is the mean difference between the score and the share of right labels, over BINS intervals of the score.
        """
        scores = np.array([float(answer[names.SCORE][0]) for answer in answers])
        if not np.all((scores >= 0) & (scores <= 1)):  # of a regression
            return None
        right = [answer[names.LABEL][0] == target for answer, target in zip(answers, targets, strict=True)]
        bins = np.minimum((scores * BINS).astype(int), BINS - 1)
        return float(np.abs(np.bincount(bins, scores - right)).sum() / len(scores))


def thresholds(stated: Sequence[str]) -> dict[str, float]:
    """Return the thresholds in `stated`, each SCORE (of all labels: "") or LABEL=SCORE. Raises UsageError."""
    found = dict[str, float]()
    for each in stated:
        label, _, number = each.rpartition("=")
        try:
            found[label] = float(number)
        except ValueError:
            found[label] = -1.0
        if not 0 <= found[label] <= 1:
            raise UsageError(f"--threshold {each} is out of range.", "Give a score from 0 to 1, or LABEL=SCORE.")
    return found


def activation(config: Config) -> str:
    """Return the activation that transformers' pipeline chooses from `problem_type` and the number of labels."""
    problem, count = config.get("problem_type"), len(labels_of(config))
    if problem == "regression":
        return "none"
    return "sigmoid" if problem == "multi_label_classification" or count == 1 else "softmax"


def compare(reference: Answer, answer: Answer) -> Comparison:
    """Compare the first labels of two answers; the drift is the difference of the scores of these labels.

    If several labels have one name, the best of them counts.
    """
    scores = zip(reversed(reference[names.LABEL]), reversed(reference[names.SCORE]), strict=True)
    expected = {label: float(score) for label, score in scores}
    label, best = answer[names.LABEL][0], reference[names.LABEL][0]
    drift = abs(expected[best] - float(answer[names.SCORE][0]))
    tie = label != best and expected[best] - expected.get(label, float("-inf")) <= TIE
    return Comparison(label == best, drift, tie)
