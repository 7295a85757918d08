"""The checkpoint's own answers in torch, in the net's tensor names, from texts without padding.

What every file of every precision is held against. Knows no ONNX.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hfx import names
from hfx.errors import CheckpointUnsupported
from hfx.exporter.encoder.pooling import LOWEST, NORM_FLOOR, TINY, Pooling

if TYPE_CHECKING:
    import torch

Tensors = dict[str, NDArray[Any]]
Place = tuple[int, tuple[int, ...]]  # of a sequence: its request, and where in that
TOKENS_A_FORWARD = 4096  # bounds the memory of one forward


def forward(
    model: torch.nn.Module,
    requests: Sequence[Tensors],
    inputs: tuple[str, ...],
    outputs: Sequence[str],
    by_token: frozenset[str],
    pooling: Pooling | None,
) -> list[Tensors]:
    """The net's outputs of each encoded request (one row each: `[1, width]` or `[1, sequences, width]`).

    The model sees no padding, as in a pipeline that is given one text; sequences of one length share a forward. An
    output of `by_token` has zeros at padding. Without `pooling` the outputs are the model's own of these names.
    Raises CheckpointUnsupported where the model itself fails.
    """
    by_length: dict[int, list[Place]] = defaultdict(list)
    for index, request in enumerate(requests):
        mask = request[names.ATTENTION_MASK]
        for place in np.ndindex(mask.shape[:-1]):
            by_length[int(mask[place].sum())].append((index, place))
    results: list[Tensors] = [{} for _ in requests]
    for length, members in by_length.items():
        for chunk in _chunks(members, max(1, TOKENS_A_FORWARD // length)):
            feed = {name: np.stack([requests[i][name][place][:length] for i, place in chunk]) for name in inputs}
            for name, rows in _run(model, feed, outputs, pooling).items():
                for (index, place), row in zip(chunk, rows, strict=True):
                    lead = requests[index][names.ATTENTION_MASK].shape
                    shape = (*lead, *row.shape[1:]) if name in by_token else (*lead[:-1], *row.shape)
                    target = results[index].setdefault(name, np.zeros(shape, row.dtype))
                    target[place][: len(row)] = row
    return results


def _chunks(members: list[Place], size: int) -> list[list[Place]]:
    return [members[start : start + size] for start in range(0, len(members), size)]


def _run(model: torch.nn.Module, flat: Tensors, outputs: Sequence[str], pooling: Pooling | None) -> Tensors:
    import torch

    feed = {name: torch.from_numpy(value.astype(np.int64)) for name, value in flat.items()}
    rows, length = feed[names.INPUT_IDS].shape
    with torch.inference_mode():
        try:
            result = model(**feed)
        except ValueError:
            # BART's classifiers refuse to batch texts that spell "</s>" a different number of times; one by one they
            # are answered.
            if rows == 1:
                raise
            alone = [_run(model, {n: v[i : i + 1] for n, v in flat.items()}, outputs, pooling) for i in range(rows)]
            return {name: np.concatenate([row[name] for row in alone]) for name in alone[0]}
        except (RuntimeError, IndexError) as error:
            raise CheckpointUnsupported(
                f"{type(model).__name__} itself fails on a text of {length} tokens: {str(error).splitlines()[0][:200]}",
                "Where only long texts are the reason, pass a smaller --max-length.",
            ) from error
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
