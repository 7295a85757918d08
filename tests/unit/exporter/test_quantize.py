"""int8 and fp16 files stay near the float graph, and an int8 row never depends on its batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hfx.exporter.quantize import encoder as quantize
from hfx.exporter.quantize.encoder import Quantized, half
from hfx.exporter.quantize.generator import ALL_LEVELS, FOUR_LEVELS
from hfx.native import library
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.files import onnx_toys
from tests.rigs.machine.processors import HAS_NATIVE, LEVELS, int8_error

HIDDEN, OUTER, TOKENS = 64, 48, 16
NEEDS_NATIVE = pytest.mark.skipif(not HAS_NATIVE, reason="no native kernels for this processor")


def row_wise(source: onnx.ModelProto, levels: int = LEVELS) -> Quantized:
    """Quantize with as many weight levels as hfx writes on this processor."""
    return quantize.row_wise(source, levels)


def weight(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def sentences(rows: int, seed: int = 1) -> np.ndarray:
    """Return activations with a few large channels, as transformers have them."""
    x = np.random.default_rng(seed).normal(size=(rows, TOKENS, HIDDEN)).astype(np.float32)
    x[..., 7] *= 20
    return x


def product(constant: np.ndarray) -> onnx.ModelProto:
    """y = x @ constant"""
    return onnx_toys.graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [onnx_toys.floats("x", "rows", "tokens", constant.shape[0])],
        [onnx_toys.floats("y", "rows", "tokens", constant.shape[1])],
        {"w": constant},
    )


def layer(constant: np.ndarray, bias: np.ndarray | None = None, **attributes: object) -> onnx.ModelProto:
    """y = Gemm(x, constant, bias) on matrices"""
    transposed = bool(attributes.get("transB"))
    wide, out = constant.shape[::-1] if transposed else constant.shape
    constants = {"w": constant} | ({"b": bias} if bias is not None else {})
    return onnx_toys.graph(
        [helper.make_node("Gemm", ["x", *constants], ["y"], **attributes)],
        [onnx_toys.floats("x", "rows", wide)],
        [onnx_toys.floats("y", "rows", out)],
        constants,
    )


def bound(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the largest error of x @ w if each weight, and each input, is off by half a step."""
    half_step, half_input = np.abs(w).max(0) / LEVELS / 2, np.abs(x).max(-1, keepdims=True) / 127 / 2
    error = np.abs(x).sum(-1, keepdims=True) * half_step + half_input * (np.abs(w).sum(0) + len(w) * half_step)
    return 1.001 * error + 1e-5


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1, 1e4])
def test_a_product_is_within_half_a_step_of_each_factor(scale: float) -> None:
    source, x, w = product(weight(HIDDEN, OUTER)), (scale * sentences(4)).astype(np.float32), weight(HIDDEN, OUTER)
    before = source.SerializeToString()
    quantized = row_wise(source).model
    (y,) = onnx_toys.run(quantized, x=x)
    assert (np.abs(y - x @ w) <= bound(x, w)).all()
    assert {i.data_type for i in quantized.graph.initializer if len(i.dims) > 1} == {TensorProto.INT8}
    assert source.SerializeToString() == before


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_quantized_layer_stays_within_the_error_bound(biased: bool, transposed: bool) -> None:
    x, w, b = sentences(1)[0], weight(HIDDEN, OUTER), weight(1, OUTER, 5)[0] * biased
    quantized = row_wise(layer(w.T.copy() if transposed else w, b if biased else None, transB=int(transposed)))
    assert quantized.weights == 1
    (y,) = onnx_toys.run(quantized.model, x=x)
    assert (np.abs(y - (x @ w + b)) <= bound(x, w)).all()


def test_channels_and_rows_of_zeros_stay_zero() -> None:
    x, w = sentences(2), weight(HIDDEN, OUTER)
    x[1, 4], w[:, 3] = 0, 0
    (y,) = onnx_toys.run(row_wise(product(w)).model, x=x)
    assert not y[..., 3].any() and not y[1, 4].any()


@pytest.mark.parametrize("labels", [1, 2, 15])
def test_a_head_of_a_few_labels_is_left_alone(labels: int) -> None:
    x, w = sentences(2), weight(HIDDEN, labels)
    quantized = row_wise(product(w))
    assert quantized.weights == 0
    np.testing.assert_array_equal(onnx_toys.run(quantized.model, x=x)[0], onnx_toys.run(product(w), x=x)[0])


@pytest.mark.parametrize("attribute", [{"alpha": 0.5}, {"beta": 2.0}])
def test_a_layer_with_factors_is_left_alone(attribute: dict[str, float]) -> None:
    assert row_wise(layer(weight(HIDDEN, OUTER), weight(1, OUTER)[0], **attribute)).weights == 0


@pytest.mark.parametrize("transposed", [False, True])
def test_a_weight_that_two_nodes_read_is_right_in_both(transposed: bool) -> None:
    """y = x @ w @ w, or x @ w @ w^T: the same square initializer for MatMul and for Gemm."""
    w = weight(HIDDEN, HIDDEN) / 8
    if transposed:
        w *= np.linspace(0.1, 3, HIDDEN, dtype=np.float32)[:, None]
    model = onnx_toys.graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["between"]),
            helper.make_node("Gemm", ["between", "w"], ["y"], transB=int(transposed)),
        ],
        [onnx_toys.floats("x", "rows", HIDDEN)],
        [onnx_toys.floats("y", "rows", HIDDEN)],
        {"w": w},
    )
    x = sentences(1)[0]
    quantized, want = row_wise(model), x @ w @ (w.T if transposed else w)
    assert quantized.weights == 1
    np.testing.assert_allclose(onnx_toys.run(quantized.model, x=x)[0], want, atol=int8_error(0.05) * np.abs(want).max())


def looked_up(w: np.ndarray) -> tuple[onnx.NodeProto, np.ndarray]:
    """Return a Gather node on the multiplied weight, as tied embeddings have, and its result."""
    return helper.make_node("Gather", ["w", "index"], ["z"]), w[1]


def read_in_a_branch(w: np.ndarray) -> tuple[onnx.NodeProto, np.ndarray]:
    output = [onnx_toys.floats("chosen", HIDDEN, OUTER)]
    then, other = (
        helper.make_graph([helper.make_node(op, ["w"], ["chosen"])], op, [], output) for op in ("Neg", "Abs")
    )
    return helper.make_node("If", ["condition"], ["z"], then_branch=then, else_branch=other), -w


@pytest.mark.parametrize("further", [looked_up, read_in_a_branch])
def test_a_weight_that_other_nodes_read_keeps_its_floats(further: Callable[..., Any]) -> None:
    w = weight(HIDDEN, OUTER)
    node, wanted = further(w)
    model = onnx_toys.graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), node],
        [onnx_toys.floats("x", "rows", "tokens", HIDDEN)],
        [onnx_toys.floats("y", "rows", "tokens", OUTER), onnx_toys.floats("z", *wanted.shape)],
        {"w": w, "index": np.int64(1), "condition": np.bool_(True)},
    )
    np.testing.assert_array_equal(onnx_toys.run(row_wise(model).model, x=sentences(1))[1], wanted)


@pytest.mark.parametrize("levels", [ALL_LEVELS, FOUR_LEVELS])
def test_weights_have_the_levels(levels: int) -> None:
    model = row_wise(product(weight(HIDDEN, OUTER)), levels).model
    (int8,) = [onnx.numpy_helper.to_array(i) for i in model.graph.initializer if i.data_type == TensorProto.INT8]
    assert int8.shape == (1, HIDDEN // 4, 64, 4)
    # Where products are added in 16 bits, two neighbours of one group of four inputs and of the next one share a sum.
    four = np.maximum(np.stack([int8, -int8]).astype(int), 0).reshape(2, HIDDEN // 8, 2, 64, 2, 2).sum(axis=(2, 5))
    assert np.abs(int8).max() == 127 if levels == ALL_LEVELS else 124 <= four.max() <= 128


def onnxruntime(model: onnx.ModelProto) -> Callable[[np.ndarray], np.ndarray]:
    session = onnx_toys.session(model)
    return lambda x: session(x=x)[0]


def native(model: onnx.ModelProto) -> Callable[[np.ndarray], np.ndarray]:
    session = onnx_toys.session(model, operators=library())
    return lambda x: session(x=x)[0]


@pytest.mark.parametrize("rows", [2, 3, 8, 33])
@pytest.mark.parametrize("opened", [onnxruntime, pytest.param(native, marks=NEEDS_NATIVE)])
def test_rows_are_near_the_floats_and_bit_equal_alone_and_in_a_batch(opened: Any, rows: int) -> None:
    x, w = sentences(rows), weight(HIDDEN, OUTER)
    x[-1] *= 1000  # a loud neighbour
    run = opened(row_wise(product(w)).model)
    together = run(x)
    assert (np.abs(together - x @ w) <= bound(x, w)).all()
    for row in range(rows):
        np.testing.assert_array_equal(run(x[row : row + 1])[0], together[row])


def test_float16_weights_keep_float32_inputs_and_outputs() -> None:
    x, w = sentences(2), weight(HIDDEN, OUTER)
    model = half(product(w))
    values = [*model.graph.input, *model.graph.output]
    assert {value.type.tensor_type.elem_type for value in values} == {TensorProto.FLOAT}
    assert {i.data_type for i in model.graph.initializer} == {TensorProto.FLOAT16}
    np.testing.assert_allclose(onnx_toys.run(model, x=x)[0], x @ w, atol=1e-2 * np.abs(x @ w).max())


def test_a_float16_encoder_answers_like_its_float32_graph() -> None:
    from hfx.exporter.encoder.checkpoint.pooling import Layer, Pooling, make_pooler
    from hfx.exporter.encoder.graph.build import build_graph
    from hfx.exporter.encoder.kinds import usual_kind

    graph = build_graph(
        tiny_checkpoints.bert("Model"),
        usual_kind("feature-extraction"),
        0,
        make_pooler(Pooling(layers=(Layer("Normalize"),))),
    )
    tokens = np.arange(5, 21, dtype=np.int32)
    feed = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
    feed["item_shape"] = np.int32([[10], [6]])
    (wanted,), (answer,) = onnx_toys.run(graph, **feed), onnx_toys.run(half(graph), **feed)
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, wanted, atol=5e-3)
