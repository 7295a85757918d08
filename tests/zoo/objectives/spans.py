"""A span of the context as the answer: cross-entropy over start and end positions, exact match.

Contexts longer than the model are read in windows that overlap by half; a window without the answer points to its first
token. Held-out answers come from the question-answering pipeline of transformers, windows and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.rigs.checkpoints.question_answering import best_answer
from tests.zoo.data.answers import Example
from tests.zoo.objectives.objective import NO_LOSS, Feature, Objective, WarmUp, inputs, padded

_NOWHERE = (0, 0)
_Offset = tuple[int, int]
_EMPTY_KEPT_ONE_IN = 4


def objective() -> Objective:
    """For examples with question, context, answer and start."""
    return Objective(
        head="ForQuestionAnswering", metric="exact_match", texts=lambda e: [e.question, e.context], encode=_encode,
        loss=_loss, evaluate=_evaluate, warm_up=WarmUp(lambda model, features: features, _asked_sentence_loss),
    )  # fmt: skip


def _encode(tokenizer: Any, examples: Sequence[Example]) -> list[Feature]:
    encoded = tokenizer(
        [e.question for e in examples], [e.context for e in examples], truncation="only_second",
        stride=tokenizer.model_max_length // 2, return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    names = [name for name in encoded if name not in ("offset_mapping", "overflow_to_sample_mapping")]
    features = [
        {name: encoded[name][i] for name in names}
        | _targets(examples[sample], encoded["offset_mapping"][i], encoded.sequence_ids(i))
        for i, sample in enumerate(encoded["overflow_to_sample_mapping"])
    ]
    # Most windows of a long context are without the answer: all of them would crowd out the ones that teach.
    return [f for i, f in enumerate(features) if f["span"] != _NOWHERE or i % _EMPTY_KEPT_ONE_IN == 0]


def _targets(example: Example, offsets: list[_Offset], sequences: list[int | None]) -> Feature:
    """`span`: the first and the last token of the answer in a window, or `_NOWHERE` where it does not hold all of it.

    `asked`: for each token of the context whether its sentence holds the answer.
    """
    end = example.start + len(example.answer)
    inside = _tokens_within(example.start, end, offsets, sequences)
    whole = inside and offsets[inside[0]][0] <= example.start and offsets[inside[-1]][1] >= end
    # A sentence ends with its first full stop: the world's names and words have none.
    opening, closing = example.context.rfind(".", 0, example.start) + 1, example.context.index(".", end) + 1
    sentence = set(_tokens_within(opening, closing, offsets, sequences))
    asked = [float(i in sentence) if kind == 1 else float(NO_LOSS) for i, kind in enumerate(sequences)]
    return {"span": (inside[0], inside[-1]) if whole else _NOWHERE, "asked": asked}


def _tokens_within(start: int, end: int, offsets: list[_Offset], sequences: list[int | None]) -> list[int]:
    """The tokens of the context that have a character in [start, end)."""
    return [
        i
        for i, ((left, right), sequence) in enumerate(zip(offsets, sequences, strict=True))
        if sequence == 1 and left < end and right > start
    ]


def _asked_sentence_loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    """The warm-up: mark the sentence that the question asks about, by the start logits.

    Every token tells right from wrong here; from spans alone a small model learns last which sentence is meant.
    """
    import torch

    logits = model(**inputs(model, features)).start_logits
    asked = padded([f["asked"] for f in features], float(NO_LOSS))
    counted = asked != NO_LOSS
    return torch.nn.functional.binary_cross_entropy_with_logits(logits[counted], asked[counted])


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    import torch

    batch = inputs(model, features)
    out = model(**batch)
    targets = torch.tensor([f["span"] for f in features])
    real = batch["attention_mask"].bool()
    return (
        _position_loss(out.start_logits, targets[:, 0], real, smoothing)
        + _position_loss(out.end_logits, targets[:, 1], real, smoothing)
    ) / 2


def _position_loss(logits: Any, target: Any, real: Any, smoothing: float) -> Any:
    """Cross-entropy over the `real` positions [n, longest], smoothed over them alone, so that padding stays out."""
    import torch

    scores = logits.masked_fill(~real, -torch.inf).log_softmax(-1).masked_fill(~real, 0.0)
    everywhere = -(scores.sum(-1) / real.sum(-1)).mean()
    return (1 - smoothing) * torch.nn.functional.nll_loss(scores, target) + smoothing * everywhere


def _evaluate(model: Any, tokenizer: Any, examples: Sequence[Example]) -> float:
    found = [best_answer(model, tokenizer, example.question, example.context) for example in examples]
    right = sum(f is not None and f["answer"] == e.answer for f, e in zip(found, examples, strict=True))
    return right / len(examples)
