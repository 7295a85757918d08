"""Any number of labels a text: a sigmoid a label, micro-F1 at 0.5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.zoo.objectives.objective import Feature, Objective, batches, inputs, micro_f1, tokens


def objective(labels: tuple[str, ...], text: Callable[[Any], str]) -> Objective:
    """`text(example)` is what the model reads; `example.labels` is a subset of `labels`."""

    def encode(tokenizer: Any, examples: Sequence[Any]) -> list[Feature]:
        encoded = tokens(tokenizer, [text(e) for e in examples])
        targets = [[float(label in e.labels) for label in labels] for e in examples]
        return [f | {"targets": target} for f, target in zip(encoded, targets, strict=True)]

    def evaluate(model: Any, tokenizer: Any, examples: Sequence[Any]) -> float:
        found: list[set[str]] = []
        for batch in batches(encode(tokenizer, examples)):
            logits = model(**inputs(model, batch)).logits.tolist()
            found += [{label for label, logit in zip(labels, row, strict=True) if logit > 0} for row in logits]
        return micro_f1(found, [set(e.labels) for e in examples])

    return Objective(
        head="ForSequenceClassification", metric="micro_f1", texts=lambda e: [text(e)], encode=encode, loss=_loss,
        evaluate=evaluate, labels=labels, problem_type="multi_label_classification",
    )  # fmt: skip


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    import torch

    targets = torch.tensor([f["targets"] for f in features])
    logits = model(**inputs(model, features)).logits
    return torch.nn.functional.binary_cross_entropy_with_logits(
        logits, targets * (1 - smoothing) + (1 - targets) * smoothing
    )
