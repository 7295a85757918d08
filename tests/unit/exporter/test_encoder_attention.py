"""Attentions that become one operator, the operators of a layer, and skipped padding."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from hfx import names
from hfx.exporter.encoder.checkpoint.architectures import DECODERS, ENCODERS
from hfx.exporter.encoder.checkpoint.pooling import Pooling, make_pooler
from hfx.exporter.encoder.graph.build import build_graph
from hfx.exporter.encoder.graph.linears import float_weights
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.quantize.encoder import Quantized, row_source, row_wise
from hfx.exporter.variants.int8 import copy_operators
from hfx.native import library
from hfx.python_backends.onnxruntime.ragged import Layout, Request
from hfx.python_backends.onnxruntime.ragged import answer as answer_requests
from hfx.python_backends.onnxruntime.sessions import open_session
from tests.rigs.checkpoints import tiny_checkpoints, tiny_encoders
from tests.rigs.files import onnx_toys
from tests.rigs.machine.processors import HAS_NATIVE, LEVELS, int8_error
from tests.rigs.machine.tiers import full
from tests.rigs.servers.onnxruntime_rig import Recording, batch_input, string_parameters
from tests.unit.exporter.test_encoder_linears import LIBRARIES, kinds

ROWS = 3
EMBEDDINGS = usual_kind("feature-extraction")
RANKER = usual_kind("text-ranking")  # logits of one sequence
# Attention that is no operator: scores are more than a product and what is added, or the mask is no addend.
TRACED = {
    "bloom", "convbert", "falcon", "flaubert", "gemma2", "gpt_neo", "hunyuan_v1_dense", "ministral", "mobilebert",
    "mpt", "mvp", "nystromformer", "openai-gpt", "seed_oss", "squeezebert", "xlm",
}  # fmt: skip
FORMS = {"mpnet": {"SelfAttentionBias"}}
FORMS |= {kind: {"SelfAttentionDisentangled"} for kind in ("deberta", "deberta-v2")}
FORMS |= {
    kind: {"SelfAttentionRotary"}
    for kind in ("eurobert", "gte", "jina_embeddings_v3", "modernbert", "nomic_bert", "ultrabert")
}
# Scaled, or rotated in other pairs, or with a causal mask.
FORMS |= {kind: {"SelfAttentionHeads"} for kind in ("esm", "esmc", "roformer", *(DECODERS - TRACED))}
FORMS |= {
    kind: {"SelfAttention", "SelfAttentionHeads"} for kind in ("bart", "mbart", "plbart")
}  # whose decoders attend to the encoder's output
# One architecture of each kind of graph; the others, whose graphs are like one of these, in make test-full.
KINDS = ("bart", "bert", "convbert", "deberta", "deberta-v2", "esm", "eurobert", "mobilebert", "modernbert", "mpnet",
         "nomic_bert", "roformer")  # fmt: skip
ARCHITECTURES = {kind: kind if kind in KINDS else full(kind) for kind in sorted(ENCODERS | DECODERS)}
WITH_OPERATORS = [ARCHITECTURES[kind] for kind in sorted(ARCHITECTURES.keys() - TRACED)]


@cache
def embedder(model_type: str) -> tuple[onnx.ModelProto, Quantized]:
    """Return the float graph of a model type's embeddings, in which positions matter much, and its int8 graph."""
    model = tiny_encoders.build(model_type, EMBEDDINGS.auto_class, num_attention_heads=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and ("attn" in name or "attention" in name):
                parameter.mul_(3.0)
    graph = build_graph(model, EMBEDDINGS, 1, make_pooler(Pooling()))
    return graph, row_wise(graph, LEVELS)


@pytest.mark.parametrize("width", [1, 16, 41])
def test_attention_becomes_one_linear_and_one_operator(width: int) -> None:
    """The answers are near the float graph's, with the library and without, in a batch with padding."""
    bert = tiny_checkpoints.bert("ForSequenceClassification")
    bert.set_attn_implementation("eager")  # as exports load it
    graph = build_graph(bert, RANKER, 0, None)
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


@pytest.mark.parametrize("model_type", ARCHITECTURES.values())
def test_the_attention_of_an_architecture_is_an_operator_or_stays_as_traced(model_type: str) -> None:
    _, found = embedder(model_type)
    wanted = set() if model_type in TRACED else FORMS.get(model_type, {"SelfAttention"})
    assert {op for op in kinds(found.model) if op.startswith("SelfAttention")} == wanted
    assert found.skips_padding == (bool(wanted) and model_type != "deberta-v2")  # whose convolution reads neighbours
    traced = {node.op_type for node in found.model.graph.node} & {"Softmax"}
    assert bool(traced) == (model_type in TRACED)


def test_deberta_without_a_convolution_skips_padding() -> None:
    """DeBERTa's third version has no convolution."""
    model = tiny_encoders.build("deberta-v2", EMBEDDINGS.auto_class, num_attention_heads=2, conv_kernel_size=0)
    assert row_wise(build_graph(model, EMBEDDINGS, 1, make_pooler(Pooling(("cls",)))), LEVELS).skips_padding


def test_heads_that_the_operator_does_not_take_are_written_out() -> None:
    model = tiny_encoders.build("deberta", EMBEDDINGS.auto_class, num_attention_heads=4)
    found = row_wise(build_graph(model, EMBEDDINGS, 1, make_pooler(Pooling(("cls",)))), LEVELS)
    assert not [op for op in kinds(found.model) if op.startswith("SelfAttention")] and not found.skips_padding


def test_keys_that_heads_share_are_read_by_head() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = tiny_encoders.build("eurobert", EMBEDDINGS.auto_class, **sizes)
    found = kinds(row_wise(build_graph(model, EMBEDDINGS, 1, make_pooler(Pooling(("cls",)))), LEVELS).model)
    assert found["SelfAttentionHeads"] == model.config.num_hidden_layers


@pytest.mark.parametrize("model_type", WITH_OPERATORS)
def test_operators_of_attention_answer_like_the_float_graph(model_type: str) -> None:
    """They do with the library and without, in a batch with padding."""
    graph, quantized = embedder(model_type)
    random, shape = np.random.default_rng(0), (ROWS, 24)
    ids = random.integers(5, tiny_encoders.VOCABULARY, shape).astype(np.int32)
    mask = (np.arange(shape[1]) < random.integers(1, shape[1] + 1, (ROWS, 1))).astype(np.int32)
    inputs = {value.name for value in graph.graph.input}
    want = answer(onnx_toys.session(graph), ids, mask, inputs)
    for path in LIBRARIES:
        got = answer(onnx_toys.session(quantized.model, operators=path), ids, mask, inputs)
        np.testing.assert_allclose(got, want, atol=int8_error(0.12) * np.abs(want).max())


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "roberta", "electra"])
def test_residuals_and_activations_of_a_layer_are_the_operators_own(model_type: str) -> None:
    task = usual_kind("feature-extraction")
    model = tiny_encoders.build(model_type, task.auto_class)
    graph = build_graph(model, task, 0, make_pooler(Pooling()))
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
@pytest.mark.parametrize(("threads", "step"), [(2, 3), full(1, 1), full(2, 1)])
def test_a_text_has_the_same_bits_in_batches_of_every_width_and_row_count(threads: int, step: int) -> None:
    """12 widths and 64 row counts make 768 batches, of which `make test` has a third."""
    bert = tiny_checkpoints.bert("ForSequenceClassification", max_position_embeddings=128)
    bert.set_attn_implementation("eager")  # as exports load it
    graph = row_wise(build_graph(bert, RANKER, 0, None), LEVELS).model
    session = onnx_toys.session(graph, operators=library(), threads=threads)
    random = np.random.default_rng(0)
    for width in range(8, 104, 8):
        ids = random.integers(5, bert.config.vocab_size, (64, width)).astype(np.int32)
        mask = (np.arange(width) < random.integers(1, width + 1, (64, 1))).astype(np.int32)
        alone = np.concatenate([answer(session, ids[row : row + 1], mask[row : row + 1]) for row in range(64)])
        for rows in range(1, 65, step):
            np.testing.assert_array_equal(answer(session, ids[-rows:], mask[-rows:]), alone[-rows:])


@pytest.mark.skipif(not HAS_NATIVE, reason="no native kernels for this processor")
@pytest.mark.parametrize("model_type", WITH_OPERATORS)
def test_a_text_has_the_same_bits_beside_texts_of_other_widths(model_type: str) -> None:
    """The texts include one whose mask has a hole and one without any unmasked token."""
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
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_requests_of_other_widths_leave_every_output_of_a_request_as_it_is(
    name: str, precision: str, tmp_path: Path
) -> None:
    """The rows include rows of several sequences, some of which are empty."""
    task = usual_kind(name)
    model = tiny_encoders.build("bert", task.auto_class, num_attention_heads=2)
    graph = build_graph(model, task, 1, None)
    quantized = row_wise(graph, LEVELS, float_weights(row_source(graph).graph) if precision == "fp32" else ())
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
    """Return the output of a graph with these inputs for padded rows."""
    rows, width = ids.shape
    feed = {names.INPUT_IDS: ids.reshape(-1), names.ATTENTION_MASK: mask.reshape(-1)}
    feed[names.TOKEN_TYPE_IDS] = np.zeros(ids.size, np.int32)
    feed[names.ITEM_SHAPE] = np.full((rows, 1), width, np.int32)
    return session(**{name: array for name, array in feed.items() if name in inputs})[0]
