"""The products of a graph, their ranking, and files in which some of them stay in float32."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

from hfx import names
from hfx.errors import UsageError
from hfx.exporter.encoder.checkpoint.pooling import Pooling, make_pooler
from hfx.exporter.encoder.graph.build import build_graph, inlined
from hfx.exporter.encoder.graph.linears import GraphView
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.mixed_precision import MOST_RUNS, fewest_kept, places
from hfx.exporter.quantize.encoder import row_source, row_wise
from hfx.exporter.quantize.products import find_products, weights_of
from hfx.exporter.quantize.sensitivity import rank
from tests.rigs.checkpoints import tiny_encoders
from tests.rigs.files import onnx_toys
from tests.rigs.machine.processors import LEVELS
from tests.unit.exporter.test_encoder_linears import LIBRARIES, kinds

# Attention of three linears, of one, and of heads; gates; shared layers; a convolution; a decoder.
TYPES = ("bert", "albert", "modernbert", "deberta-v2", "bart", "eurobert", "distilbert")
TASK = usual_kind("feature-extraction")


@cache
def graph_of(model_type: str) -> onnx.ModelProto:
    heads = {"n_heads": 2} if model_type == "distilbert" else {"num_attention_heads": 2}
    return build_graph(tiny_encoders.build(model_type, TASK.auto_class, **heads), TASK, 1, make_pooler(Pooling()))


def feeds(graph: onnx.ModelProto, widths: tuple[int, ...] = (5, 9, 14)) -> list[dict[str, Any]]:
    """Return the inputs of a text of each width."""
    random, inputs = np.random.default_rng(0), {value.name for value in graph.graph.input}
    texts = [
        {
            names.INPUT_IDS: random.integers(5, tiny_encoders.VOCABULARY, width).astype(np.int32),
            names.ATTENTION_MASK: np.ones(width, np.int32),
            names.TOKEN_TYPE_IDS: np.zeros(width, np.int32),
            names.ITEM_SHAPE: np.array([[width]], np.int32),
        }
        for width in widths
    ]
    return [{name: value for name, value in text.items() if name in inputs} for text in texts]


def products(graph: onnx.ModelProto) -> tuple[onnx.ModelProto, GraphView, list[Any]]:
    source = row_source(graph)
    view = GraphView(source)
    return source, view, find_products(view)


def test_products_are_named_by_their_modules() -> None:
    found = [product.name for product in products(graph_of("bert"))[2]]
    layer = ["attention.self.query+key+value", "attention.output.dense", "intermediate.dense", "output.dense"]
    assert [name.removeprefix("encoder.layer.0.") for name in found[:4]] == layer
    assert places([found[3], found[7], found[4]]) == "layers 0, 1 output; layer 1 attention.self.query+key+value"
    assert places(["pooler.dense", "encoder.layer.11.output.dense"]) == "pooler; layer 11 output"
    gates = [product for product in products(graph_of("modernbert"))[2] if "+" in product.name]
    assert {product.name.rpartition(".")[2] for product in gates} == {"gate+value"}
    assert all(len(product.parts) == 2 for product in gates)


@pytest.mark.parametrize("model_type", TYPES)
def test_each_weight_belongs_to_one_product(model_type: str) -> None:
    graph = graph_of(model_type)
    source, _, found = products(graph)
    weights = [weight for product in found for weight in product.weights]
    assert len(weights) == len(set(weights)) == row_wise(graph, LEVELS).weights
    assert len({product.name for product in found}) == len(found)
    assert weights_of(source, [found[0].name]) == found[0].weights


def test_a_product_that_the_graph_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no product layer\.9"):
        weights_of(row_source(graph_of("bert")), ["layer.9"])


@pytest.mark.parametrize("model_type", TYPES)
def test_a_file_with_some_products_in_float32_is_nearer_to_the_float_graph(model_type: str) -> None:
    """Both forms are: native operators and their definitions; in a file without int8, equal."""
    graph = graph_of(model_type)
    source, view, found = products(graph)
    texts = feeds(graph)
    ranking = rank(source, view, found, texts, LEVELS, 1)
    assert [*ranking.values()] == sorted(ranking.values(), reverse=True) and ranking.keys() == {p.name for p in found}
    want = [onnx_toys.session(inlined(graph))(**text)[0] for text in texts]

    def error(model: onnx.ModelProto, library: Any) -> float:
        session = onnx_toys.session(model, operators=library)
        return max(float(np.abs(session(**text)[0] - one).max()) for text, one in zip(texts, want, strict=True))

    half = weights_of(source, [*ranking][: len(ranking) // 2])
    every = weights_of(source, ranking)
    for library in LIBRARIES:
        plain, mixed, exact = (error(row_wise(graph, LEVELS, kept).model, library) for kept in ((), half, every))
        assert exact < 1e-5 < mixed < plain
    counts = kinds(row_wise(graph, LEVELS, every).model)
    assert not any(op.startswith("Int8") for op in counts)


def test_texts_of_a_mixed_file_have_the_same_bits_alone_and_in_a_batch() -> None:
    graph = graph_of("modernbert")
    source, _, found = products(graph)
    mixed = row_wise(graph, LEVELS, weights_of(source, [product.name for product in found[::2]])).model
    texts = feeds(graph, (16, 16, 16, 16, 16))
    whole = {name: np.concatenate([text[name] for text in texts]) for name in texts[0]}
    for library in LIBRARIES:
        session = onnx_toys.session(mixed, operators=library)
        (together,) = session(**whole)
        for row, text in zip(together, texts, strict=True):
            assert np.array_equal(session(**text)[0][0], row)


@pytest.mark.parametrize("total", [1, 2, 9, 50, 74, 98, 300])
@pytest.mark.parametrize("needed", [1, 2, 3, 8, 60, 1000])
def test_few_attempts_find_a_number_that_passes(total: int, needed: int) -> None:
    tried: list[int] = []

    def attempt(count: int) -> int | None:
        tried.append(count)
        return count if count >= needed else None

    best, runs = fewest_kept(total, attempt)
    assert runs == len(tried) == len(set(tried)) <= MOST_RUNS
    assert all(0 < count < total for count in tried)
    assert best == min((count for count in tried if count >= needed), default=None)
    if needed == 1 < total <= 200:
        assert best == 1
