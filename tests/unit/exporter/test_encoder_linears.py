"""Nodes of a traced graph that become one operator, which computes the same natively and by its definition."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn
from transformers.activations import ACT2FN

from hfx.exporter.encoder.graph.build import clean
from hfx.exporter.quantize.encoder import row_wise
from hfx.native import library
from tests.rigs.files import onnx_toys
from tests.rigs.machine.processors import HAS_NATIVE, LEVELS

ROWS, WIDTH, HIDDEN, OUTER = 3, 5, 64, 48
LIBRARIES = [None, *([library()] if HAS_NATIVE else [])]
OWN = "hfx"


def traced(module: nn.Module, *inputs: torch.Tensor) -> onnx.ModelProto:
    """Return the graph of `module`, traced and cleaned as an encoder's; its inputs are x0, x1, ..., rows first."""
    given = [f"x{place}" for place in range(len(inputs))]
    written = io.BytesIO()
    torch.onnx.export(
        module.eval(),
        inputs,
        written,
        input_names=given,
        output_names=["y"],
        dynamic_axes={name: {0: "rows"} for name in given},
        opset_version=onnx_toys.OPSET,
        dynamo=False,
    )
    return clean(onnx.load_from_string(written.getvalue()))


def kinds(model: onnx.ModelProto) -> Counter[str]:
    """Return the number of hfx's own operators by type."""
    return Counter(node.op_type for node in model.graph.node if node.domain == OWN)


def near(model: onnx.ModelProto, quantized: onnx.ModelProto, *inputs: torch.Tensor) -> None:
    """Check that the quantized graph answers like the float one, with the library and without."""
    feed = {f"x{place}": value.numpy() for place, value in enumerate(inputs)}
    (want,) = onnx_toys.run(model, **feed)
    for path in LIBRARIES:
        (got,) = onnx_toys.session(quantized, operators=path)(**feed)
        np.testing.assert_allclose(got, want, atol=0.03 * np.abs(want).max())


def activations(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


class Activated(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(HIDDEN, OUTER), ACT2FN[kind]

    def forward(self, x: torch.Tensor) -> Any:
        return self.activation(self.linear(x))


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("gelu", "Int8LinearGelu"),
        ("gelu_python", "Int8LinearGelu"),
        ("gelu_new", "Int8LinearGeluTanh"),
        ("gelu_fast", "Int8LinearGeluTanh"),
        ("gelu_pytorch_tanh", "Int8LinearGeluTanh"),
        ("gelu_accurate", "Int8LinearGeluTanh"),
        ("quick_gelu", "Int8LinearQuickGelu"),
        ("silu", "Int8LinearSilu"),
        ("relu", "Int8LinearRelu"),
        ("tanh", "Int8LinearTanh"),
        ("mish", "Int8Linear"),
        ("leaky_relu", "Int8Linear"),
    ],
)
def test_every_way_to_write_an_activation_is_known(kind: str, operator: str) -> None:
    torch.manual_seed(0)
    x = activations(ROWS, WIDTH, HIDDEN)
    model = traced(Activated(kind), x)
    quantized = row_wise(model, LEVELS).model
    assert kinds(quantized) == {operator: 1}
    if operator != "Int8Linear":
        assert len(quantized.graph.node) == 1
    near(model, quantized, x)


class AlsoRead(nn.Module):
    """A module in which the input of the activation is an output, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, OUTER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return torch.cat([torch.nn.functional.gelu(y), y], -1)


def test_an_activation_whose_input_is_read_elsewhere_stays() -> None:
    torch.manual_seed(0)
    x = activations(ROWS, WIDTH, HIDDEN)
    model = traced(AlsoRead(), x)
    quantized = row_wise(model, LEVELS).model
    assert kinds(quantized) == {"Int8Linear": 1}
    near(model, quantized, x)


class Gated(nn.Module):
    """activation(gate) * value, of one tensor or of two; with `kept`, the value is an output, too."""

    def __init__(self, kind: str, biased: bool = True, kept: bool = False) -> None:
        super().__init__()
        self.gate, self.value = (nn.Linear(HIDDEN, OUTER, bias=biased) for _ in range(2))
        self.activation, self.kept = ACT2FN[kind], kept

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        value = self.value(x if other is None else other)
        gated = value * self.activation(self.gate(x))
        return torch.cat([gated, value], -1) if self.kept else gated


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("kind", "operator"), [("gelu", "Int8LinearGatedGelu"), ("tanh", "Int8LinearGatedTanh"), ("sigmoid", "Int8Linear")]
)
def test_a_gate_and_what_it_is_multiplied_by_are_one_operator(kind: str, operator: str, biased: bool) -> None:
    torch.manual_seed(0)
    x = activations(ROWS, WIDTH, HIDDEN)
    model = traced(Gated(kind, biased), x)
    quantized = row_wise(model, LEVELS)
    assert kinds(quantized.model) == {operator: 2 if operator == "Int8Linear" else 1}
    assert quantized.weights == 2
    near(model, quantized.model, x)


def test_a_gate_of_what_is_read_elsewhere_or_made_of_another_tensor_stays_a_product() -> None:
    torch.manual_seed(0)
    x, other = activations(ROWS, WIDTH, HIDDEN), activations(ROWS, WIDTH, HIDDEN) * 2
    for module, inputs in ((Gated("silu", kept=True), (x,)), (Gated("silu"), (x, other))):
        model = traced(module, *inputs)
        quantized = row_wise(model, LEVELS).model
        assert kinds(quantized) == {"Int8Linear": 1, "Int8LinearSilu": 1}
        near(model, quantized, *inputs)


class Added(nn.Module):
    def __init__(self, biased: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN, bias=biased)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self.linear(x)


@pytest.mark.parametrize("biased", [False, True])
def test_a_residual_of_the_same_shape_is_added_by_the_operator(biased: bool) -> None:
    x, residual = activations(ROWS, WIDTH, HIDDEN), activations(ROWS, WIDTH, HIDDEN)
    model = traced(Added(biased), x, residual)
    quantized = row_wise(model, LEVELS).model
    assert kinds(quantized) == {"Int8LinearAdd": 1} and len(quantized.graph.node) == 1
    near(model, quantized, x, residual)


@pytest.mark.parametrize("shape", [(1, WIDTH, HIDDEN), (WIDTH, HIDDEN), ("rows", 1, HIDDEN)])
def test_what_is_broadcast_is_added_by_a_node_of_its_own(shape: tuple[int | str, ...]) -> None:
    x, other = activations(ROWS, WIDTH, HIDDEN), activations(*(ROWS if size == "rows" else size for size in shape))
    inputs = [onnx_toys.floats("x0", "rows", WIDTH, HIDDEN), onnx_toys.floats("x1", *shape)]
    nodes = [helper.make_node("MatMul", ["x0", "w"], ["p"]), helper.make_node("Add", ["p", "x1"], ["y"])]
    weight = np.random.default_rng(0).normal(size=(HIDDEN, HIDDEN)).astype(np.float32)
    model = onnx_toys.graph(nodes, inputs, [onnx_toys.floats("y", "rows", WIDTH, HIDDEN)], {"w": weight})
    quantized = row_wise(model, LEVELS).model
    assert kinds(quantized) == {"Int8Linear": 1}
    near(model, quantized, x, other)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(HIDDEN, OUTER), nn.Linear(HIDDEN, OUTER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x)


def test_of_the_sum_of_two_linears_one_adds_the_other() -> None:
    torch.manual_seed(0)
    x = activations(ROWS, WIDTH, HIDDEN)
    model = traced(Sum(), x)
    quantized = row_wise(model, LEVELS).model
    assert kinds(quantized) == {"Int8Linear": 1, "Int8LinearAdd": 1}
    near(model, quantized, x)
