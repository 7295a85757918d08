"""A BIO tag a token: cross-entropy over the tokens, micro-F1 over whole entities (span and label both right)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.zoo.data.entities import Example
from tests.zoo.objectives.objective import (
    NO_LOSS,
    Feature,
    Objective,
    batches,
    inputs,
    micro_f1,
    padded,
    token_loss,
)

_Span = tuple[int, int, str]


def objective(labels: tuple[str, ...]) -> Objective:
    """`labels` are the BIO tags, `O` among them."""

    def encode(tokenizer: Any, examples: Sequence[Example]) -> list[Feature]:
        encoded = tokenizer([e.text for e in examples], truncation=True, return_offsets_mapping=True)
        names = [name for name in encoded if name != "offset_mapping"]
        return [
            {name: encoded[name][i] for name in names}
            | {"offsets": offsets, "tags": [_tag(labels, example, *offset) for offset in offsets]}
            for i, (example, offsets) in enumerate(zip(examples, encoded["offset_mapping"], strict=True))
        ]

    def evaluate(model: Any, tokenizer: Any, examples: Sequence[Example]) -> float:
        found: list[set[_Span]] = []
        for batch in batches(encode(tokenizer, examples)):
            picks = model(**inputs(model, batch)).logits.argmax(-1).tolist()
            found += [spans([labels[p] for p in row], f["offsets"]) for row, f in zip(picks, batch, strict=True)]
        return micro_f1(found, [{(e.start, e.end, e.label) for e in x.entities} for x in examples])

    return Objective(
        head="ForTokenClassification", metric="micro_f1", texts=lambda e: [e.text], encode=encode, loss=_loss,
        evaluate=evaluate, labels=labels,
    )  # fmt: skip


def _tag(labels: tuple[str, ...], example: Example, start: int, end: int) -> int:
    """The tag of the token at [start, end): later pieces of a first word are I-, so that grouping keeps it whole."""
    if start == end:
        return NO_LOSS
    for entity in example.entities:
        if entity.start <= start < entity.end:
            return labels.index(("B-" if start == entity.start else "I-") + entity.label)
    return labels.index("O")


def spans(tags: list[str], offsets: list[tuple[int, int]]) -> set[_Span]:
    """Entities in a row of tags: B- opens one, I- of the same label continues it."""
    spans: list[_Span] = []
    inside = ""
    for tag, (start, end) in zip(tags, offsets, strict=False):
        prefix, _, label = tag.partition("-")
        if start == end or not label:
            inside = ""
        elif prefix == "I" and inside == label:
            spans[-1] = (spans[-1][0], end, label)
        else:
            spans.append((start, end, label))
            inside = label
    return set(spans)


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    tags = padded([f["tags"] for f in features], NO_LOSS)
    return token_loss(model(**inputs(model, features)).logits, tags, smoothing)
