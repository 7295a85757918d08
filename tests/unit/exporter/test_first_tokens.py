"""Graphs that read the first token of each text compute nothing else behind the last attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from hfx import names
from hfx.exporter.encoder.checkpoint.pooling import Pooling, make_pooler
from hfx.exporter.encoder.graph.build import build_graph
from hfx.exporter.encoder.graph.linears import float_weights
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.quantize.encoder import row_source, row_wise
from tests.rigs.checkpoints import tiny_encoders
from tests.rigs.files import onnx_toys
from tests.rigs.machine.processors import LEVELS
from tests.unit.exporter.test_encoder_attention import RANKER, answer
from tests.unit.exporter.test_encoder_linears import LIBRARIES, kinds

EMBEDDINGS = usual_kind("feature-extraction")
WIDE: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 2}  # a panel of the operators
WIDER: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4}  # one of float products


def graph_of(model_type: str, pooling: Any = "", **changes: Any) -> onnx.ModelProto:
    """Return the float graph of a classifier, or of an embedder with a pooling."""
    task = EMBEDDINGS if pooling else RANKER
    model = tiny_encoders.build(model_type, task.auto_class, **changes)
    return build_graph(model, task, 0, make_pooler(Pooling((pooling,))) if pooling else None)


def with_all_tokens(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with a second output, whose tokens are those of which the graph gathers the first."""
    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    constants = {each.name: numpy_helper.to_array(each) for each in copy.graph.initializer}
    firsts = [
        node.input[0]
        for node in copy.graph.node
        if node.op_type == "Gather" and any(each.name == "axis" and each.i == 1 for each in node.attribute)
        if node.input[1] in constants and constants[node.input[1]].ndim == 0
    ]
    copy.graph.output.append(
        onnx.helper.make_tensor_value_info(firsts[-1], onnx.TensorProto.FLOAT, ["rows", "tokens", "width"])
    )
    return copy


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("model_type", "pooling", "changes", "precision"), [
    ("bert", "", {}, "int8"),
    ("bert", "", WIDE, "int8"),
    ("bert", "", WIDER, "fp32"),
    ("roberta", "", WIDE, "int8"),
    ("bert", "cls", WIDE, "int8"),
    ("mpnet", "cls", WIDE, "int8"),
    ("modernbert", "cls", WIDE, "int8"),
    ("modernbert", "cls", WIDER, "fp32"),
    ("deberta-v2", "cls", {**WIDE, "conv_kernel_size": 0}, "int8"),
    ("albert", "cls", WIDE, "int8"),
])  # fmt: skip
def test_answers_have_the_bits_of_the_graph_that_computes_all_tokens(
    library: Path | None, model_type: str, pooling: str, changes: dict[str, int], precision: str
) -> None:
    graph = graph_of(model_type, pooling, **changes)
    kept = float_weights(row_source(graph).graph) if precision == "fp32" else ()
    found, whole = (row_wise(each, LEVELS, kept).model for each in (graph, with_all_tokens(graph)))
    assert any(name.endswith(".first") for node in found.graph.node for name in node.output)
    assert not any(name.endswith(".first") for node in whole.graph.node for name in node.output)
    random, inputs = np.random.default_rng(0), {value.name for value in graph.graph.input}
    for width in (1, 16, 41):
        ids = random.integers(5, tiny_encoders.VOCABULARY, (3, width)).astype(np.int32)
        mask = (np.arange(width) < random.integers(1, width + 1, (3, 1))).astype(np.int32)
        mask[0] = 0  # a text without tokens
        got, want = (answer(onnx_toys.session(each, operators=library), ids, mask, inputs) for each in (found, whole))
        if library:
            np.testing.assert_array_equal(got, want)
        else:  # ONNX Runtime multiplies floats of other shapes in another order
            np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())


def test_the_queries_of_other_tokens_are_not_computed() -> None:
    found = row_wise(graph_of("bert", **WIDE), LEVELS).model
    counted = kinds(found)
    assert (counted["SelfAttention"], counted["SelfAttentionFirst"]) == (
        tiny_encoders.SMALL["num_hidden_layers"] - 1,
        1,
    )
    linears = [node for node in found.graph.node if node.op_type.startswith("Int8Linear")]
    of_tokens = [node for node in linears if node.input[-1] == "hfx.padding.last"]
    assert len(linears) - len(of_tokens) == 5  # queries, the result of the attention, two of the layer, the pooler


def test_weights_that_layers_share_are_stored_once() -> None:
    found = row_wise(graph_of("albert", "cls", **WIDE), LEVELS).model
    assert not kinds(found)["SelfAttentionFirst"]
    values = [each.name for each in found.graph.initializer if each.name.endswith(".int8")]
    assert len(values) == len({name.partition(".int8")[0] for name in values})


def test_a_mean_of_tokens_is_computed_of_all_tokens() -> None:
    found = row_wise(graph_of("bert", "mean", **WIDE), LEVELS).model
    assert not any(name.endswith(".first") for node in found.graph.node for name in node.output)
    assert names.INPUT_IDS in {value.name for value in found.graph.input}
