"""Text ranking: a cross-encoder scores how well a text answers a query. One row is one pair.

A caller ranks texts by their scores; the pairs of several callers meet in one batch. A cross-encoder of several labels
has a score for each, as CrossEncoder.predict gives them; it ranks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from hfx import names
from hfx.exporter.ranking import spearman
from hfx.exporter.tasks.task import Answer, Comparison, EncoderTask, Request, labels_of, logits_of_labels
from hfx.python_backends.templates import FILLERS, cut, rendered, tail
from hfx.repository.config_pbtxt import TensorSpec

# Characters of a sample's query: at most 4 bytes each, and a query may have 16 bytes for each of 16 tokens or more.
QUERY_CHARACTERS = 64
DISTANCE = 7  # from a text to the one whose beginning is its query, where that is not its own
# Scores further apart are no longer the same answer: 5 points of a probability, 5 % of a logit beyond 1.
SAME_SCORE = 0.05


def scoring(task: EncoderTask, labels: Sequence[str]) -> EncoderTask:
    """`task` of a cross-encoder with these `labels`: several have scores in their order, and are measured by the best.

    The softmax of one score would be 1: only several have the option.
    """
    task = replace(task, postprocess_settings=lambda config: {"labels": list(labels)})
    if len(labels) == 1:
        return replace(task, postprocess_reads=(names.RAW_SCORES,))

    def accuracy(answers: Sequence[Answer], targets: Sequence[str]) -> float:
        best = (labels[int(np.argmax(answer[names.SCORE]))] for answer in answers)
        return fmean(label == target for label, target in zip(best, targets, strict=True))

    outputs = (TensorSpec(names.SCORE, "TYPE_FP32", (len(labels),)),)
    return replace(task, outputs=outputs, metric=accuracy, metric_name="accuracy", pair_scores=None)


def logits(numbers: int) -> tuple[TensorSpec, ...]:
    """So many logits a pair."""
    return (TensorSpec(names.LOGITS, "TYPE_FP32", (numbers,)),)


def samples(texts: Sequence[str]) -> list[Request]:
    """Each text under a query: the beginning of its own, which it answers, and of another one, in turn."""
    return [
        {names.QUERY: texts[(i + i % 2 * DISTANCE) % len(texts)][:QUERY_CHARACTERS], names.TEXT_INPUT: text}
        for i, text in enumerate(texts)
    ]


def expected_ids(tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
    """The pair, of which the longer text is truncated first."""
    pairs = [(request[names.QUERY], request[names.TEXT_INPUT])]  # a list: alone, an empty text would be no pair
    ids: list[list[int]] = tokenizer(pairs, truncation="longest_first", max_length=max_length)["input_ids"]
    return ids


def templated_ids(
    plain: Sequence[str], prompted: Sequence[str] | None, tokenizer: Any, request: Request, max_length: int
) -> list[list[int]]:
    """Those of the pair in its template, or, with a prompt, in the other one; what stands behind the text is kept."""
    fields = {names.PROMPT: "", **request}
    parts = prompted if prompted and fields[names.PROMPT] else plain
    ids, *ends = (
        tokenizer(rendered(parts, {**fields, **other}), add_special_tokens=False, verbose=False)["input_ids"]
        for other in ({}, *({names.QUERY: text, names.TEXT_INPUT: text} for text in FILLERS))
    )
    return [ids if len(ids) <= max_length else cut(ids, tail(*ends), max_length)]


def compare(reference: Answer, answer: Answer) -> Comparison:
    """The difference of the scores drifts: as a share of the reference's where that is a logit beyond 1."""
    expected, found = (np.atleast_1d(np.asarray(each[names.SCORE], np.float64)) for each in (reference, answer))
    drift = float(np.max(np.abs(expected - found) / np.maximum(1.0, np.abs(expected))))
    return Comparison(drift <= SAME_SCORE, drift)


def pair_scores(answers: Sequence[Answer]) -> list[float]:
    """The scores."""
    return [float(answer[names.SCORE]) for answer in answers]


TASK = EncoderTask(
    task=names.Task.TEXT_RANKING,
    auto_class="AutoModelForSequenceClassification",
    architectures=("ForSequenceClassification",),
    item_rank=1,
    outputs=(TensorSpec(names.SCORE, "TYPE_FP32", (1,)),),
    net_outputs=logits_of_labels(),
    postprocess_reads=(names.RAW_SCORES, names.APPLY_SOFTMAX),
    postprocess_settings=lambda config: {"labels": labels_of(config)},  # the plan adds the activation
    samples=samples,
    expected_ids=expected_ids,
    compare=compare,
    metric=lambda answers, targets: spearman(pair_scores(answers), targets),
    pair_scores=pair_scores,
    metric_name="spearman",
    by_library=True,
)
