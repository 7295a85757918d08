"""Text classification: one label of several (softmax), several at once or a single one (sigmoid), or a regression."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from hfx import names
from hfx.exporter.tasks.task import Answer, Comparison, Config, EncoderTask, Request, labels_of, logits_of_labels
from hfx.repository.config_pbtxt import TensorSpec

ALL_LABELS = 1_000_000  # top_k beyond the number of labels means all of them
TIE = 0.02  # two scores of the checkpoint so close that neither label is wrong


def activation(config: Config) -> str:
    """As transformers' pipeline chooses it from `problem_type` and the number of labels."""
    problem, count = config.get("problem_type"), len(labels_of(config))
    if problem == "regression":
        return "none"
    return "sigmoid" if problem == "multi_label_classification" or count == 1 else "softmax"


def samples(texts: Sequence[str]) -> list[Request]:
    """Every text is a request, for all labels: a comparison needs to know how close the others are."""
    return [{names.TEXT_INPUT: text, names.TOP_K: ALL_LABELS} for text in texts]


def expected_ids(tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
    """The text, truncated."""
    return [tokenizer(request[names.TEXT_INPUT], truncation=True, max_length=max_length)["input_ids"]]


def compare(reference: Answer, answer: Answer) -> Comparison:
    """The first label decides; its score drifts. Of labels with one name, the best one counts."""
    scores = zip(reversed(reference[names.LABEL]), reversed(reference[names.SCORE]), strict=True)
    expected = {label: float(score) for label, score in scores}
    label, best = answer[names.LABEL][0], reference[names.LABEL][0]
    drift = abs(expected[best] - float(answer[names.SCORE][0]))
    tie = label != best and expected[best] - expected.get(label, float("-inf")) <= TIE
    return Comparison(label == best, drift, tie)


def accuracy(answers: Sequence[Answer], targets: Sequence[str]) -> float:
    """Share of answers whose first label is the target."""
    return fmean(a[names.LABEL][0] == target for a, target in zip(answers, targets, strict=True))


TASK = EncoderTask(
    task=names.Task.TEXT_CLASSIFICATION,
    auto_class="AutoModelForSequenceClassification",
    architectures=("ForSequenceClassification",),
    item_rank=1,
    outputs=(TensorSpec(names.LABEL, "TYPE_STRING", (-1,)), TensorSpec(names.SCORE, "TYPE_FP32", (-1,))),
    net_outputs=logits_of_labels(),
    postprocess_reads=(names.TOP_K,),
    # As many labels as the pipeline gives, unless `top_k` says otherwise.
    postprocess_settings=lambda config: {
        "labels": labels_of(config),
        "activation": activation(config),
        "default_top_k": 1,
    },
    samples=samples,
    expected_ids=expected_ids,
    compare=compare,
    metric=accuracy,
    metric_name="accuracy",
)
