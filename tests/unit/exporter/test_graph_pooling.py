"""Pooling in the graph equals that of sentence-transformers, row by row."""

from __future__ import annotations

from typing import get_args

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from hfx.exporter.encoder.checkpoint.pooling import Layer, Mode, Pooling, make_pooler
from hfx.exporter.encoder.graph.pooled_graph import append_pooling, sum_by_operators
from tests.rigs.files import onnx_toys

WIDTH = 8
MODES: tuple[Mode, ...] = get_args(Mode)
NORMALIZE = (Layer("Normalize"),)
POOLINGS = [*(Pooling((mode,), layers) for mode in MODES for layers in ((), NORMALIZE)), Pooling(MODES)]


def graph(pooling: Pooling) -> onnx.ModelProto:
    model = onnx_toys.graph(
        [helper.make_node("Identity", ["hidden"], ["last_hidden_state"])],
        [onnx_toys.floats("hidden", "rows", "tokens", WIDTH), onnx_toys.integers("mask", "rows", "tokens")],
        [onnx_toys.floats("last_hidden_state", "rows", "tokens", WIDTH)],
    )
    append_pooling(model, make_pooler(pooling), "last_hidden_state", "mask", "embedding")
    return model


def pool(pooling: Pooling, hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    (embedding,) = onnx_toys.run(graph(pooling), hidden=hidden, mask=mask)
    return embedding


def reference(pooling: Pooling, hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the result of sentence_transformers.sentence_transformer.modules.Pooling and Normalize."""
    from sentence_transformers.sentence_transformer.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling as Reference

    features = {"token_embeddings": torch.tensor(hidden), "attention_mask": torch.tensor(mask)}
    features = Reference(WIDTH, pooling.modes)(features)
    return (Normalize()(features) if pooling.layers else features)["sentence_embedding"].numpy()


def example(rows: int = 5, tokens: int = 7) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    hidden, lengths = numbers.normal(size=(rows, tokens, WIDTH)), numbers.integers(1, tokens + 1, rows)
    return hidden.astype(np.float32), (np.arange(tokens) < lengths[:, None]).astype(int)


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_pooling_equals_sentence_transformers_beside_padding_and_nan_rows(pooling: Pooling) -> None:
    hidden, mask = example()
    mask[2] = 0
    hidden[1, mask[1] == 1] = np.nan
    embedding = pool(pooling, hidden, mask)
    assert np.isnan(embedding[1]).all() and np.isfinite(embedding[[0, 2, 3, 4]]).all()
    np.testing.assert_allclose(embedding[[0, 3, 4]], reference(pooling, hidden, mask)[[0, 3, 4]], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
def test_a_zero_embedding_normalizes_to_zero(mode: Mode) -> None:
    hidden, mask = np.zeros((1, 3, WIDTH), np.float32), np.ones((1, 3), int)
    assert not pool(Pooling((mode,), NORMALIZE), hidden, mask).any()


@pytest.mark.parametrize("tokens", [1, 16, 100])
@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_a_pooled_row_is_the_same_alone_and_in_a_batch(pooling: Pooling, tokens: int) -> None:
    hidden, mask = example(rows=6, tokens=tokens)
    together = pool(pooling, hidden, mask)
    for row in range(len(hidden)):
        np.testing.assert_array_equal(pool(pooling, hidden[row : row + 1], mask[row : row + 1])[0], together[row])


@pytest.mark.parametrize("factor", ["mask", "column"])
def test_a_sum_of_the_mask_itself_is_left_alone(factor: str) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", [factor, factor], ["product"]),
        helper.make_node("ReduceSum", ["product", "tokens"], ["sums"], keepdims=0),
    ]
    model = onnx_toys.graph(nodes, [onnx_toys.integers("mask", "rows", "tokens")], [onnx_toys.integers("sums", "rows")])
    axes = {"last": 2, "tokens": 1}
    model.graph.initializer.extend(helper.make_tensor(name, 7, [1], [axis]) for name, axis in axes.items())
    before = model.SerializeToString()
    sum_by_operators(model, "mask")
    assert model.SerializeToString() == before


def test_torch_warns_of_nothing_while_it_traces(capfd: pytest.CaptureFixture[str]) -> None:
    graph(Pooling(("mean",), NORMALIZE))
    assert capfd.readouterr().err == "", "C++ code writes its warnings past Python"


@pytest.mark.parametrize("mode", ["mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_long_texts_of_large_values_are_pooled_in_float16(mode: Mode) -> None:
    """It runs in torch, as ONNX Runtime computes a file of float16 in float32 on a machine without a GPU."""
    tokens = 4098
    hidden = np.random.default_rng(0).normal(20, 1, (1, tokens + 3, WIDTH)).astype(np.float16)
    mask = (np.arange(tokens + 3)[None] < tokens).astype(np.int64)
    with torch.no_grad():
        found = make_pooler(Pooling((mode,)))(torch.from_numpy(hidden), torch.from_numpy(mask)).numpy()
    np.testing.assert_allclose(found, reference(Pooling((mode,)), hidden.astype(np.float32), mask), rtol=2e-3)
