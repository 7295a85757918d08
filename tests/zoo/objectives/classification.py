"""Labels of a text: just one (cross-entropy, accuracy), or any number (a sigmoid a label, micro-F1 at 0.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.zoo.objectives.objective import Feature, Objective, WarmUp, batches, inputs, micro_f1, tokens


def single_label(
    labels: tuple[str, ...], texts: Callable[[Any], list[str]], warm_up: WarmUp | None = None
) -> Objective:
    """`texts(example)` gives the one or two texts that the model reads; `example.label` is one of `labels`."""

    def encode(tokenizer: Any, examples: Sequence[Any]) -> list[Feature]:
        columns = [list(column) for column in zip(*(texts(e) for e in examples), strict=True)]
        encoded = tokens(tokenizer, *columns)
        return [f | {"label": labels.index(e.label)} for f, e in zip(encoded, examples, strict=True)]

    def loss(model: Any, features: list[Feature], smoothing: float) -> Any:
        import torch

        targets = torch.tensor([f["label"] for f in features])
        logits = model(**inputs(model, features)).logits
        return torch.nn.functional.cross_entropy(logits, targets, label_smoothing=smoothing)

    def evaluate(model: Any, tokenizer: Any, examples: Sequence[Any]) -> float:
        features = encode(tokenizer, examples)
        right = 0
        for batch in batches(features):
            picks = model(**inputs(model, batch)).logits.argmax(-1).tolist()
            right += sum(pick == f["label"] for pick, f in zip(picks, batch, strict=True))
        return right / len(features)

    return Objective(
        head="ForSequenceClassification", metric="accuracy", texts=texts, encode=encode, loss=loss, evaluate=evaluate,
        labels=labels, problem_type="single_label_classification", warm_up=warm_up,
    )  # fmt: skip


def multi_label(labels: tuple[str, ...], text: Callable[[Any], str]) -> Objective:
    """`text(example)` is what the model reads; `example.labels` is a subset of `labels`."""

    def encode(tokenizer: Any, examples: Sequence[Any]) -> list[Feature]:
        encoded = tokens(tokenizer, [text(e) for e in examples])
        targets = [[float(label in e.labels) for label in labels] for e in examples]
        return [f | {"targets": target} for f, target in zip(encoded, targets, strict=True)]

    def loss(model: Any, features: list[Feature], smoothing: float) -> Any:
        import torch

        targets = torch.tensor([f["targets"] for f in features])
        logits = model(**inputs(model, features)).logits
        return torch.nn.functional.binary_cross_entropy_with_logits(
            logits, targets * (1 - smoothing) + (1 - targets) * smoothing
        )

    def evaluate(model: Any, tokenizer: Any, examples: Sequence[Any]) -> float:
        predicted: list[set[str]] = []
        for batch in batches(encode(tokenizer, examples)):
            logits = model(**inputs(model, batch)).logits.tolist()
            predicted += [{label for label, logit in zip(labels, row, strict=True) if logit > 0} for row in logits]
        return micro_f1(predicted, [set(e.labels) for e in examples])

    return Objective(
        head="ForSequenceClassification", metric="micro_f1", texts=lambda e: [text(e)], encode=encode, loss=loss,
        evaluate=evaluate, labels=labels, problem_type="multi_label_classification",
    )  # fmt: skip
