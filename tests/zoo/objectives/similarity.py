"""One vector a sentence (mean of its tokens, length 1), whose cosine is the similarity: squared error, Spearman."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.zoo import sentence_transformers_files
from tests.zoo.examples import SimilarExample
from tests.zoo.objectives.objective import Feature, Objective, batches, inputs, tokens


def objective() -> Objective:
    """For examples with two sentences and a score."""
    return Objective(
        head="Model", metric="spearman", texts=lambda e: [e.first, e.second], encode=_encode, loss=_loss,
        evaluate=_evaluate, extra_files=sentence_transformers_files.write,
    )  # fmt: skip


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """The correlation of the ranks, -1..1; equal values share the mean of their ranks."""
    import numpy as np

    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    import numpy as np

    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: list[float] = (last - (counts - 1) / 2)[inverse].tolist()
    return means


def _encode(tokenizer: Any, examples: Sequence[SimilarExample]) -> list[Feature]:
    firsts, seconds = tokens(tokenizer, [e.first for e in examples]), tokens(tokenizer, [e.second for e in examples])
    return [
        first | {"second": second, "score": example.score}
        for first, second, example in zip(firsts, seconds, examples, strict=True)
    ]


def _cosines(model: Any, features: list[Feature]) -> Any:
    first, second = _embed(model, features), _embed(model, [f["second"] for f in features])
    return (first * second).sum(-1)


def _embed(model: Any, features: list[Feature]) -> Any:
    import torch

    batch = inputs(model, features)
    mask = batch["attention_mask"].unsqueeze(-1).float()
    mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    import torch

    return torch.nn.functional.mse_loss(_cosines(model, features), torch.tensor([f["score"] for f in features]))


def _evaluate(model: Any, tokenizer: Any, examples: Sequence[SimilarExample]) -> float:
    cosines = [c for batch in batches(_encode(tokenizer, examples)) for c in _cosines(model, batch).tolist()]
    return spearman(cosines, [e.score for e in examples])
