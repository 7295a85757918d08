"""One label a text (or a pair of texts): cross-entropy, accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.zoo.objectives.objective import Feature, Objective, WarmUp, batches, inputs, tokens


def objective(labels: tuple[str, ...], texts: Callable[[Any], list[str]], warm_up: WarmUp | None = None) -> Objective:
    """`texts(example)` gives the one or two texts that the model reads; `example.label` is one of `labels`."""

    def encode(tokenizer: Any, examples: Sequence[Any]) -> list[Feature]:
        columns = [list(column) for column in zip(*(texts(e) for e in examples), strict=True)]
        encoded = tokens(tokenizer, *columns)
        return [f | {"label": labels.index(e.label)} for f, e in zip(encoded, examples, strict=True)]

    def evaluate(model: Any, tokenizer: Any, examples: Sequence[Any]) -> float:
        features = encode(tokenizer, examples)
        right = 0
        for batch in batches(features):
            picks = model(**inputs(model, batch)).logits.argmax(-1).tolist()
            right += sum(pick == f["label"] for pick, f in zip(picks, batch, strict=True))
        return right / len(features)

    return Objective(
        head="ForSequenceClassification", metric="accuracy", texts=texts, encode=encode, loss=_loss, evaluate=evaluate,
        labels=labels, problem_type="single_label_classification", warm_up=warm_up,
    )  # fmt: skip


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    import torch

    logits = model(**inputs(model, features)).logits
    return torch.nn.functional.cross_entropy(
        logits, torch.tensor([f["label"] for f in features]), label_smoothing=smoothing
    )
