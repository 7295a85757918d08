"""The next token of a text: cross-entropy, and whether a greedy continuation of a held-out prompt is the right one.

What a prompt says is chosen freely, and nobody can foresee it; what follows from it can be right or wrong. So the
tokens of the continuation (its end included) count in full, those of the prompt a little.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tests.zoo.data.stories import Example
from tests.zoo.objectives.objective import Feature, Objective, WarmUp, batches, padded

_PROMPT_WEIGHT = 0.1
_REPEATED = 16
_SPARE_TOKENS = 8  # how much longer than the longest true continuation a found one may get


def objective(generation: dict[str, Any]) -> Objective:
    """For examples with a prompt and a continuation, which starts with a space.

    `generation` are the keywords of the saved GenerationConfig.
    """
    return Objective(
        head="LMHeadModel", metric="exact_match", texts=lambda e: [e.prompt + e.continuation], encode=_encode,
        loss=_loss, evaluate=_evaluate, warm_up=WarmUp(_repeated, _loss),
        generation=generation,
    )  # fmt: skip


def _encode(tokenizer: Any, examples: Sequence[Example]) -> list[Feature]:
    prompts = tokenizer([e.prompt for e in examples])["input_ids"]
    wholes = tokenizer([e.prompt + e.continuation for e in examples])["input_ids"]
    return [
        {"input_ids": [*whole, tokenizer.eos_token_id], "prompt_length": len(prompt)}
        for prompt, whole in zip(prompts, wholes, strict=True)
    ]


def _repeated(model: Any, features: list[Feature]) -> list[Feature]:
    """The warm-up: tokens of a story in any order, twice. What comes next is what came next the first time.

    Copying is what a small model learns last from stories, where few tokens are copied and all copies are told apart.
    """
    rng = random.Random(0)
    once = [rng.sample(f["input_ids"][:-1], _REPEATED) for f in features]
    return [{"input_ids": tokens * 2, "prompt_length": _REPEATED} for tokens in once]


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    """The tokens [n, longest] are padded on the right with the end, where they have no weight."""
    import torch

    ids = padded([f["input_ids"] for f in features], model.config.eos_token_id)
    weights = padded([_weights(f) for f in features], 0.0)[:, 1:]
    logits = model(input_ids=ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), ids[:, 1:], reduction="none", label_smoothing=smoothing
    )
    return (losses * weights).sum() / weights.sum()


def _weights(feature: Feature) -> list[float]:
    known = feature["prompt_length"]
    return [_PROMPT_WEIGHT] * known + [1.0] * (len(feature["input_ids"]) - known)


def _evaluate(model: Any, tokenizer: Any, examples: Sequence[Example]) -> float:
    features = _encode(tokenizer, examples)
    longest = max(len(f["input_ids"]) - f["prompt_length"] for f in features)
    right = 0
    for batch in _alike(features):
        found = _continue(model, [f["input_ids"][: f["prompt_length"]] for f in batch], longest + _SPARE_TOKENS)
        right += sum(ids[: len(f["input_ids"])] == f["input_ids"] for ids, f in zip(found, batch, strict=True))
    return right / len(features)


def _alike(features: list[Feature]) -> Iterator[list[Feature]]:
    """Batches of prompts of one length, which need no padding."""
    by_length: dict[int, list[Feature]] = defaultdict(list)
    for feature in features:
        by_length[feature["prompt_length"]].append(feature)
    for alike in by_length.values():
        yield from batches(alike)


def _continue(model: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """The prompts [n, length] and their greedy continuations, padded with the end."""
    import torch

    ids = torch.tensor(prompts)
    found: list[list[int]] = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
        pad_token_id=model.config.eos_token_id,
    ).tolist()  # fmt: skip
    return found
