"""A warm-up for sequence-to-sequence classifiers: write the text that follows from a premise.

A label tells such a model one thing a pair of texts; writing tells it one thing a token. What it learns here (which
words belong together) is what the classifier then compares. Weights and architecture stay those of the classifier.
"""

from __future__ import annotations

from typing import Any

from tests.zoo.objectives.objective import NO_LOSS, Feature, WarmUp, inputs, padded, token_loss


def warm_up() -> WarmUp:
    """For classification features of pairs, whose labels include "entailment"."""
    return WarmUp(_pairs, _loss)


def _pairs(model: Any, features: list[Feature]) -> list[Feature]:
    """Premise and hypothesis of each entailed feature, whose ids are `<s> premise </s></s> hypothesis </s>`."""
    entailment = model.config.label2id["entailment"]
    return [_pair(f["input_ids"], model.config.eos_token_id) for f in features if f["label"] == entailment]


def _pair(ids: list[int], separator: int) -> Feature:
    middle = ids.index(separator)
    return {"input_ids": ids[: middle + 1], "attention_mask": [1] * (middle + 1), "target": ids[middle + 2 :]}


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    """Cross-entropy of the hypothesis' tokens; the output matrix is the embedding, as in BART's own pretraining."""
    target = padded([f["target"] for f in features], NO_LOSS)
    before = target.roll(1, dims=1).masked_fill(target.roll(1, dims=1) == NO_LOSS, model.config.pad_token_id)
    before[:, 0] = model.config.eos_token_id
    hidden = model.model(**inputs(model, features), decoder_input_ids=before).last_hidden_state
    return token_loss(hidden @ model.get_input_embeddings().weight.T, target, smoothing)
