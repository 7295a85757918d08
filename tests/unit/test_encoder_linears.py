"""Which nodes of a traced graph become one operator, and that it computes the same natively and without the library."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Container
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn
from transformers.activations import ACT2FN

from hfx import names
from hfx.exporter.encoder.build import build_graph, clean
from hfx.exporter.encoder.folders import copy_operators
from hfx.exporter.encoder.pooling import Pooling
from hfx.exporter.quantize.encoder import Quantized, row_wise
from hfx.exporter.tasks import find_task
from hfx.native import library
from hfx.python_backends.onnxruntime.ragged import Layout, Request
from hfx.python_backends.onnxruntime.ragged import answer as answer_requests
from hfx.python_backends.onnxruntime.sessions import open_session
from tests import tiny_checkpoints
from tests.unit import onnx_toys, tiny_encoders
from tests.unit.onnxruntime_rig import Recording, batch_input, string_parameters
from tests.unit.processors import HAS_NATIVE, LEVELS

ROWS, WIDTH, HIDDEN, OUTER = 3, 5, 64, 48
EMBEDDINGS = find_task("feature-extraction")
LIBRARIES = [None, *([library()] if HAS_NATIVE else [])]
OWN = "hfx"
# Attention that is no operator: scores are more than a product and what is added, or the mask is no addend.
TRACED = {"convbert", "flaubert", "mobilebert", "nystromformer", "squeezebert", "xlm"}
FORMS = {"mpnet": {"SelfAttentionBias"}}
FORMS |= {kind: {"SelfAttentionDisentangled"} for kind in ("deberta", "deberta-v2")}
FORMS |= {kind: {"SelfAttentionRotary"} for kind in ("eurobert", "modernbert", "nomic_bert")}
FORMS |= {kind: {"SelfAttentionHeads"} for kind in ("esm", "roformer")}  # scaled, or rotated in other pairs
FORMS |= {
    kind: {"SelfAttention", "SelfAttentionHeads"} for kind in ("bart", "mbart")
}  # whose decoders attend to what encoders made


def traced(module: nn.Module, *inputs: torch.Tensor) -> onnx.ModelProto:
    """The graph of `module`, as an encoder's is traced and cleaned; its inputs are x0, x1, ..., rows first."""
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


@cache
def embedder(model_type: str) -> tuple[onnx.ModelProto, Quantized]:
    """The float graph of an architecture's embeddings, with scores so large that places matter, and its int8 form."""
    model = tiny_encoders.build(model_type, EMBEDDINGS.auto_class, num_attention_heads=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and ("attn" in name or "attention" in name):
                parameter.mul_(3.0)
    graph = build_graph(model, EMBEDDINGS, 1, Pooling("mean", normalize=False))
    return graph, row_wise(graph, LEVELS)


def kinds(model: onnx.ModelProto) -> Counter[str]:
    """The number of hfx's own operators by type."""
    return Counter(node.op_type for node in model.graph.node if node.domain == OWN)


def near(model: onnx.ModelProto, quantized: onnx.ModelProto, *inputs: torch.Tensor) -> None:
    """The quantized graph answers like the float one, with the library and without."""
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
        ("tanh", "Int8Linear"),
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
    """What goes into the activation is an output, too."""

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
    """activation(gate) * value, of one tensor or of two; `kept`: the value is an output, too."""

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
    ("kind", "operator"), [("gelu", "Int8LinearGatedGelu"), ("silu", "Int8LinearGatedSilu"), ("tanh", "Int8Linear")]
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


@pytest.mark.parametrize("width", [1, 16, 41])
def test_attention_is_one_linear_and_one_operator(width: int) -> None:
    """With the library and without, in a batch with padding, near the float graph."""
    bert = tiny_checkpoints.bert("ForSequenceClassification")
    bert.set_attn_implementation("eager")  # as exports load it
    graph = build_graph(bert, find_task("text-classification"), 0, None)
    quantized = row_wise(graph, LEVELS).model
    layers = bert.config.num_hidden_layers
    assert kinds(quantized)["SelfAttention"] == layers
    assert "Softmax" not in {node.op_type for node in quantized.graph.node}
    random = np.random.default_rng(0)
    ids = random.integers(5, bert.config.vocab_size, (ROWS, width)).astype(np.int32)
    mask = (np.arange(width) < random.integers(1, width + 1, (ROWS, 1))).astype(np.int32)
    want = answer(onnx_toys.session(graph), ids, mask)
    for path in LIBRARIES:
        got = answer(onnx_toys.session(quantized, operators=path), ids, mask)
        np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())


@pytest.mark.parametrize("model_type", tiny_encoders.CONFIGS)
def test_the_attention_of_an_architecture_is_an_operator_or_stays_as_traced(model_type: str) -> None:
    _, found = embedder(model_type)
    wanted = set() if model_type in TRACED else FORMS.get(model_type, {"SelfAttention"})
    assert {op for op in kinds(found.model) if op.startswith("SelfAttention")} == wanted
    assert found.skips_padding == (bool(wanted) and model_type != "deberta-v2")  # whose convolution reads neighbours
    traced = {node.op_type for node in found.model.graph.node} & {"Softmax"}
    assert bool(traced) == (model_type in TRACED)


def test_deberta_without_a_convolution_skips_padding() -> None:
    """As its third version is."""
    model = tiny_encoders.build("deberta-v2", EMBEDDINGS.auto_class, num_attention_heads=2, conv_kernel_size=0)
    assert row_wise(build_graph(model, EMBEDDINGS, 1, Pooling("cls", normalize=False)), LEVELS).skips_padding


def test_heads_that_the_operator_does_not_take_are_written_out() -> None:
    model = tiny_encoders.build("deberta", EMBEDDINGS.auto_class, num_attention_heads=4)
    found = row_wise(build_graph(model, EMBEDDINGS, 1, Pooling("cls", normalize=False)), LEVELS)
    assert not [op for op in kinds(found.model) if op.startswith("SelfAttention")] and not found.skips_padding


def test_keys_that_heads_share_are_read_by_head() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = tiny_encoders.build("eurobert", EMBEDDINGS.auto_class, **sizes)
    found = kinds(row_wise(build_graph(model, EMBEDDINGS, 1, Pooling("cls", normalize=False)), LEVELS).model)
    assert found["SelfAttentionHeads"] == model.config.num_hidden_layers


@pytest.mark.parametrize("model_type", sorted(set(tiny_encoders.CONFIGS) - TRACED))
def test_operators_of_attention_answer_like_the_float_graph(model_type: str) -> None:
    """With the library and without, in a batch with padding."""
    graph, quantized = embedder(model_type)
    random, shape = np.random.default_rng(0), (ROWS, 24)
    ids = random.integers(5, tiny_encoders.VOCABULARY, shape).astype(np.int32)
    mask = (np.arange(shape[1]) < random.integers(1, shape[1] + 1, (ROWS, 1))).astype(np.int32)
    inputs = {value.name for value in graph.graph.input}
    want = answer(onnx_toys.session(graph), ids, mask, inputs)
    for path in LIBRARIES:
        got = answer(onnx_toys.session(quantized.model, operators=path), ids, mask, inputs)
        np.testing.assert_allclose(got, want, atol=0.12 * np.abs(want).max())


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "roberta", "electra"])
def test_residuals_and_activations_of_a_layer_are_the_operators_own(model_type: str) -> None:
    task = find_task("feature-extraction")
    model = tiny_encoders.build(model_type, task.auto_class)
    graph = build_graph(model, task, 0, Pooling("mean", normalize=False))
    layers = getattr(model.config, "num_hidden_layers", 0)
    found = kinds(row_wise(graph, LEVELS).model)
    assert found["Int8LinearAdd"] == 2 * layers
    assert found["Int8LinearGelu"] == layers


@pytest.mark.parametrize(
    ("model_type", "activation"), [("modernbert", "Gelu"), ("nomic_bert", "Silu"), ("eurobert", "Silu")]
)
def test_gates_of_a_layer_are_the_operators_own(model_type: str, activation: str) -> None:
    found, layers = kinds(embedder(model_type)[1].model), tiny_encoders.SMALL["num_hidden_layers"]
    assert found[f"Int8LinearGated{activation}"] == found["Int8LinearAdd"] // 2 == layers
    assert not {"Sigmoid", "Erf"} & {node.op_type for node in embedder(model_type)[1].model.graph.node}


@pytest.mark.skipif(not HAS_NATIVE, reason="no native kernels for this processor")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_text_has_the_same_bits_in_batches_of_every_width_and_row_count(threads: int) -> None:
    """12 widths, 64 row counts: 768 batches."""
    bert = tiny_checkpoints.bert("ForSequenceClassification", max_position_embeddings=128)
    bert.set_attn_implementation("eager")  # as exports load it
    graph = row_wise(build_graph(bert, find_task("text-classification"), 0, None), LEVELS).model
    session = onnx_toys.session(graph, operators=library(), threads=threads)
    random = np.random.default_rng(0)
    for width in range(8, 104, 8):
        ids = random.integers(5, bert.config.vocab_size, (64, width)).astype(np.int32)
        mask = (np.arange(width) < random.integers(1, width + 1, (64, 1))).astype(np.int32)
        alone = np.concatenate([answer(session, ids[row : row + 1], mask[row : row + 1]) for row in range(64)])
        for rows in range(1, 65):
            np.testing.assert_array_equal(answer(session, ids[-rows:], mask[-rows:]), alone[-rows:])


@pytest.mark.skipif(not HAS_NATIVE, reason="no native kernels for this processor")
@pytest.mark.parametrize("model_type", sorted(set(tiny_encoders.CONFIGS) - TRACED))
def test_a_text_has_the_same_bits_beside_texts_of_other_widths(model_type: str) -> None:
    """The embedding of a text whose mask has a hole, of one without any token that is shown, and of others."""
    _, quantized = embedder(model_type)
    run = onnx_toys.session(quantized.model, operators=library(), threads=2)
    inputs = {value.name for value in quantized.model.graph.input}
    random, widths = np.random.default_rng(0), (8, 40, 16, 8, 24, 40)
    ids = [random.integers(5, tiny_encoders.VOCABULARY, (1, width)).astype(np.int32) for width in widths]
    masks = [(np.arange(width) < random.integers(1, width + 1)).astype(np.int32)[None] for width in widths]
    masks[1][0, 3], masks[4][:] = 0, 0

    def embeddings(rows: slice) -> np.ndarray:
        flat = {
            names.INPUT_IDS: np.concatenate(ids[rows], axis=1)[0],
            names.ATTENTION_MASK: np.concatenate(masks[rows], axis=1)[0],
            names.ITEM_SHAPE: np.array([[width] for width in widths[rows]], np.int32),
        }
        flat[names.TOKEN_TYPE_IDS] = np.zeros_like(flat[names.INPUT_IDS])
        return run(**{name: array for name, array in flat.items() if name in inputs})[0]

    together = embeddings(slice(None))
    for row in range(len(widths)):
        np.testing.assert_array_equal(embeddings(slice(row, row + 1))[0], together[row])


@pytest.mark.skipif(not HAS_NATIVE, reason="no native kernels for this processor")
@pytest.mark.parametrize("name", ["token-classification", "question-answering", "zero-shot-classification"])
def test_requests_of_other_widths_leave_every_output_of_a_request_as_it_is(name: str, tmp_path: Path) -> None:
    """Of several sequences a row, too, of which some are empty."""
    task = find_task(name)
    model = tiny_encoders.build("bert", task.auto_class, num_attention_heads=2)
    quantized = row_wise(build_graph(model, task, 1, None), LEVELS)
    onnx.save(quantized.model, tmp_path / "model.onnx")
    inputs = [value.name for value in quantized.model.graph.input if value.name != names.ITEM_SHAPE]
    dims = [-1] * task.item_rank
    outputs = [(spec.name, list(spec.dims)) for spec in task.net_outputs(model.config.to_dict())]
    config = {
        "max_batch_size": 64,
        "input": [
            {"name": each, "data_type": "TYPE_INT32", "dims": dims, "allow_ragged_batch": True} for each in inputs
        ],
        "output": [{"name": each, "data_type": "TYPE_FP32", "dims": shape} for each, shape in outputs],
        "batch_input": [batch_input("BATCH_ITEM_SHAPE", names.ITEM_SHAPE, names.INPUT_IDS)],
        "parameters": string_parameters(**copy_operators(tmp_path, quantized.skips_padding)),
    }
    session, layout = Recording(open_session(config, tmp_path / "model.onnx")), Layout.read(config)
    assert session.skips_padding
    random, requests = np.random.default_rng(0), []
    for rows, sequences, width in [(1, 2, 8), (2, 2, 16), (1, 2, 40), (1, 3, 24), (2, 2, 32), (1, 2, 32)]:
        shape = (rows, *[sequences] * (task.item_rank - 1), width)
        mask = np.arange(width) < random.integers(1, width + 1, (*shape[:-1], 1))
        mask[-1:, 1:] &= task.item_rank == 1  # an empty sequence
        tensors = {names.INPUT_IDS: random.integers(5, 100, shape), names.ATTENTION_MASK: mask}
        feed = {each: np.asarray(tensors.get(each, np.zeros(shape)), np.int32) for each in inputs}
        requests.append(Request(feed, layout.outputs))
    answers = answer_requests(session, layout, requests)
    assert len(session.feeds) < len(requests)
    for asked, found in zip(requests, answers, strict=True):
        (alone,) = answer_requests(session, layout, [asked])
        assert not isinstance(found, Exception) and not isinstance(alone, Exception), (found, alone)
        for output in layout.outputs:
            np.testing.assert_array_equal(found[output], alone[output])


def answer(
    session: Callable[..., list[np.ndarray]],
    ids: np.ndarray,
    mask: np.ndarray,
    inputs: Container[str] = (names.INPUT_IDS, names.ATTENTION_MASK, names.TOKEN_TYPE_IDS, names.ITEM_SHAPE),
) -> np.ndarray:
    """The output for padded rows of a graph that has these inputs."""
    rows, width = ids.shape
    feed = {names.INPUT_IDS: ids.reshape(-1), names.ATTENTION_MASK: mask.reshape(-1)}
    feed[names.TOKEN_TYPE_IDS] = np.zeros(ids.size, np.int32)
    feed[names.ITEM_SHAPE] = np.full((rows, 1), width, np.int32)
    return session(**{name: array for name, array in feed.items() if name in inputs})[0]
