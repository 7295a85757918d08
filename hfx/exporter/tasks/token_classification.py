"""Token classification: entities with their places in the text, grouped as transformers' pipeline groups them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hfx import names
from hfx.exporter.tasks.task import Answer, Comparison, EncoderTask, Request, labels_of, logits_of_labels
from hfx.exporter.tasks.text_classification import expected_ids
from hfx.repository.config_pbtxt import TensorSpec

AGGREGATIONS = ("none", "simple", "first", "average", "max")
DEFAULT_AGGREGATION = "simple"


def entities(answer: Answer) -> list[dict[str, Any]]:
    """The list inside the JSON of an answer."""
    value: list[dict[str, Any]] = json.loads(answer[names.ENTITIES])
    return value


def samples(texts: Sequence[str]) -> list[Request]:
    """Every text is a request."""
    return [{names.TEXT_INPUT: text} for text in texts]


def compare(reference: Answer, answer: Answer) -> Comparison:
    """Same spans with same labels; of those that both have, the largest difference of two scores drifts."""
    ours, theirs = _scores(answer), _scores(reference)
    drift = max((abs(ours[key] - theirs[key]) for key in ours.keys() & theirs.keys()), default=0.0)
    return Comparison(ours.keys() == theirs.keys(), drift)


def _scores(answer: Answer) -> dict[tuple[str, int, int], float]:
    return {(e["entity"], e["start"], e["end"]): float(e["score"]) for e in entities(answer)}


def f1(answers: Sequence[Answer], targets: Sequence[str]) -> float:
    """Micro F1 over (label, start, end); a target is the JSON list of {entity, start, end}."""
    hits = found = wanted = 0
    for answer, target in zip(answers, targets, strict=True):
        ours = Counter((e["entity"], e["start"], e["end"]) for e in entities(answer))
        theirs = Counter((e["entity"], e["start"], e["end"]) for e in json.loads(target))
        hits += (ours & theirs).total()
        found += ours.total()
        wanted += theirs.total()
    return 2 * hits / (found + wanted) if found + wanted else 1.0


TASK = EncoderTask(
    task=names.Task.TOKEN_CLASSIFICATION,
    auto_class="AutoModelForTokenClassification",
    architectures=("ForTokenClassification",),
    item_rank=1,
    outputs=(TensorSpec(names.ENTITIES, "TYPE_STRING", (1,)),),
    net_outputs=logits_of_labels(-1),
    token_outputs=(TensorSpec(names.OFFSETS, "TYPE_INT32", (-1, 2)),),
    postprocess_reads=(names.TEXT_INPUT, names.INPUT_IDS, names.OFFSETS),
    postprocess_settings=lambda config: {"labels": labels_of(config)},  # the plan adds the aggregation
    tokenizer_settings=lambda tokenizer, checkpoint: {"unk_id": tokenizer.unk_token_id},
    samples=samples,
    expected_ids=expected_ids,
    compare=compare,
    metric=f1,
    metric_name="f1",
)
