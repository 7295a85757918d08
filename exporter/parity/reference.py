"""The checkpoint's own answers: one torch forward a request, batched, in the net's tensor names.

What every file of every precision is held against. Knows no ONNX.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hfx import names
from hfx.exporter.graph.pooling import LOWEST, NORM_FLOOR, TINY, Pooling

if TYPE_CHECKING:
    import torch

Tensors = dict[str, NDArray[Any]]
TOKENS_A_FORWARD = 4096  # bounds the memory of one forward


def forward(
    model: torch.nn.Module,
    requests: Sequence[Tensors],
    inputs: tuple[str, ...],
    outputs: Sequence[str],
    pooling: Pooling | None,
) -> list[Tensors]:
    """The net's outputs of each encoded request (one row each: `[1, width]` or `[1, sequences, width]`).

    Requests of one shape share a forward. Without `pooling` the outputs are the model's own of these names.
    """
    by_width: dict[int, list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        by_width[request[names.INPUT_IDS].shape[-1]].append(index)
    results: list[Tensors] = [{} for _ in requests]
    for width, members in by_width.items():
        for chunk in _chunks(members, requests, width):
            flat = {n: np.concatenate([requests[i][n].reshape(-1, width) for i in chunk]) for n in inputs}
            found = _run(model, flat, outputs, pooling)
            start = 0
            for index in chunk:
                shape = requests[index][names.INPUT_IDS].shape
                end = start + int(np.prod(shape[:-1]))
                results[index] = {n: v[start:end].reshape(shape[:-1] + v.shape[1:]) for n, v in found.items()}
                start = end
    return results


def _chunks(members: list[int], requests: Sequence[Tensors], width: int) -> list[list[int]]:
    chunks: list[list[int]] = []
    tokens = TOKENS_A_FORWARD
    for index in members:
        size = requests[index][names.INPUT_IDS].size
        if tokens + size > TOKENS_A_FORWARD:
            chunks.append([])
            tokens = 0
        chunks[-1].append(index)
        tokens += size
    return chunks


def _run(model: torch.nn.Module, flat: Tensors, outputs: Sequence[str], pooling: Pooling | None) -> Tensors:
    import torch

    feed = {name: torch.from_numpy(value.astype(np.int64)) for name, value in flat.items()}
    with torch.inference_mode():
        try:
            result = model(**feed)
        except ValueError:
            # BART's classifiers refuse to batch texts that spell "</s>" a different number of times; one by one they
            # are answered.
            if len(feed[names.INPUT_IDS]) == 1:
                raise
            rows = [
                _run(model, {n: v[i : i + 1] for n, v in flat.items()}, outputs, pooling)
                for i in range(len(feed[names.INPUT_IDS]))
            ]
            return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        if pooling is None:
            return {name: getattr(result, name).float().numpy() for name in outputs}
        pooled = pool(result.last_hidden_state.float(), feed[names.ATTENTION_MASK], pooling)
        return {names.EMBEDDING: pooled.numpy()}


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Sentence embeddings `[rows, width]` of token embeddings, by sentence-transformers' formulas in torch."""
    import torch

    weights = mask.unsqueeze(-1).float()
    if pooling.mode == "cls":
        pooled = hidden[:, 0]
    elif pooling.mode == "max":
        pooled = hidden.masked_fill(weights == 0, LOWEST).max(dim=1).values
    else:
        count = weights.sum(dim=1).clamp(min=TINY)
        pooled = (hidden * weights).sum(dim=1) / (count.sqrt() if pooling.mode == "mean_sqrt_len" else count)
    return torch.nn.functional.normalize(pooled, dim=-1, eps=NORM_FLOOR) if pooling.normalize else pooled
