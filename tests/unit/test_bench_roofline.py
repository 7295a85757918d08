"""Bytes and operations of graphs that can be counted by hand, and the limits that follow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from bench.machine import needs, roofline, tokens_read
from bench.machine.needs import Needs, of_generator
from bench.machine.roofline import limit
from bench.machine.weights import NONE, Weights, read_weights, weights_of
from hfx.perf.load import Request, RequestSet
from hfx.perf.results import Rates
from tests.unit.onnx_toys import floats, graph, integers

RATES = Rates(read_bytes=1e9, fp32_operations=1e9, int8_operations=4e9)
KILO = Weights(bytes=1000.0, numbers=250.0, integers=False)
SMALL = Weights(bytes=100.0, numbers=100.0, integers=True)


def node(kind: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], **attributes)


def test_a_product_reads_its_matrix_once_and_multiplies_each_row_by_all_of_it() -> None:
    nodes = [node("MatMul", ["x", "w"], "y"), node("Add", ["y", "b"], "z")]
    model = graph(
        nodes, [floats("x", "n", 8)], [floats("z", "n", 4)], {"w": np.ones((8, 4), "f"), "b": np.ones(4, "f")}
    )
    assert weights_of(model.graph) == Weights(bytes=4 * (32 + 4), numbers=32.0, integers=False)


def test_of_an_embedding_only_rows_are_read_unless_it_is_the_head_too() -> None:
    table = {"table": np.ones((100, 8), "f")}
    gathered = [node("Gather", ["table", "ids"], "x")]
    model = graph(gathered, [integers("ids", "n")], [floats("x", "n", 8)], table)
    assert weights_of(model.graph) == NONE
    tied = [*gathered, node("Transpose", ["table"], "head", perm=[1, 0]), node("MatMul", ["x", "head"], "scores")]
    model = graph(tied, [integers("ids", "n")], [floats("scores", "n", 100)], table)
    assert weights_of(model.graph) == Weights(bytes=3200.0, numbers=800.0, integers=False)


def test_int8_weights_are_a_byte_each_and_are_found_behind_their_scales() -> None:
    nodes = [node("DequantizeLinear", ["w", "scale"], "float"), node("MatMul", ["x", "float"], "y")]
    weights = {"w": np.ones((8, 4), np.int8), "scale": np.float32(0.5)}
    model = graph(nodes, [floats("x", "n", 8)], [floats("y", "n", 4)], weights)
    assert weights_of(model.graph) == Weights(bytes=32 + 4, numbers=32.0, integers=True)


def test_packed_int4_weights_count_as_the_numbers_that_they_hold() -> None:
    packed = node("MatMulNBits", ["x", "w", "scales"], "y", K=64, N=4, bits=4, block_size=32, domain="com.microsoft")
    weights = {"w": np.ones((4, 2, 16), np.uint8), "scales": np.ones(8, "f")}
    model = graph([packed], [floats("x", "n", 64)], [floats("y", "n", 4)], weights)
    assert weights_of(model.graph) == Weights(bytes=128 + 32, numbers=256.0, integers=True)


def test_products_of_activations_need_no_weights() -> None:
    model = graph([node("MatMul", ["x", "x"], "y")], [floats("x", 4, 4)], [floats("y", 4, 4)], {})
    assert weights_of(model.graph) == NONE


def test_external_data_is_not_loaded(tmp_path: Path) -> None:
    weights = {"w": np.ones((512, 512), "f")}
    model = graph([node("MatMul", ["x", "w"], "y")], [floats("x", "n", 512)], [floats("y", "n", 512)], weights)
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    assert read_weights(tmp_path / "m.onnx") == Weights(4.0 * 512 * 512, 512.0 * 512, integers=False)


def test_a_lone_caller_is_bound_by_reading_and_a_full_batch_by_computing() -> None:
    alone = limit(Needs(NONE, KILO), RATES, 1, 500_000, "tokens")
    assert alone is not None and alone.bound == "memory"
    assert (alone.bytes_each, alone.operations_each) == (1000.0, 500.0)
    assert alone.limit == pytest.approx(1e6) and alone.share == pytest.approx(0.5)
    full = limit(Needs(NONE, KILO), RATES, 10, 500_000, "tokens")
    assert full is not None and full.bound == "compute" and full.bytes_each == 100.0
    assert full.limit == pytest.approx(2e6) and full.share == pytest.approx(0.25)


def test_int8_operations_have_their_own_rate() -> None:
    found = limit(Needs(NONE, SMALL), RATES, 100, 1e6, "tokens")
    assert found is not None and found.bound == "compute" and found.limit == pytest.approx(4e9 / 200)


def test_a_request_of_a_net_costs_its_tokens_and_its_share_of_the_batch() -> None:
    found = limit(Needs(KILO, NONE), RATES, 4, 100, "requests", read=16)
    assert found is not None and found.operations_each == 2 * 250 * 16 and found.bytes_each == 250.0
    assert found.limit == pytest.approx(1e9 / 8000)
    assert limit(Needs(KILO, NONE), RATES, 4, 100, "requests") is None  # unknown tokens: no limit is made up


def test_a_source_is_read_once_by_the_encoder_and_a_prompt_by_the_decoder() -> None:
    both = limit(Needs(SMALL, KILO), RATES, 2, 100, "tokens", read=20, written=10)
    assert both is not None and both.bytes_each == 1000 / 2 + 100 / 10
    assert both.operations_each == 2 * 250 + 2 * 100 * 2
    prompted = limit(Needs(NONE, KILO), RATES, 2, 100, "tokens", read=20, written=10)
    assert prompted is not None and prompted.operations_each == 2 * 250 * 3 and prompted.bytes_each == 500 + 100


def test_nothing_is_said_of_a_gpu_or_of_nothing(tmp_path: Path) -> None:
    assert roofline(tmp_path, "any", "gpu", RATES, 1, 10, "tokens") is None
    assert roofline(tmp_path, "any", "cpu", RATES, 1, None, "tokens") is None


@pytest.mark.slow
def test_published_models_have_the_needs_of_their_parameters(tmp_path: Path) -> None:
    from tests.published import export_zoo

    export_zoo("sentiment-distilbert", tmp_path, "sentiment", "int8")
    found = needs(tmp_path, "sentiment")
    hidden, wide, layers, labels = 128, 256, 2, 3
    matrices = layers * (4 * hidden * hidden + 2 * hidden * wide) + hidden * hidden + hidden * labels
    assert found is not None and found.encoder.numbers == matrices and found.encoder.integers
    assert matrices < found.encoder.bytes < 1.2 * matrices  # with scales, biases and normalizations
    asks = RequestSet((Request({"text_input": ("What a lovely garden",), "top_k": (1,)}),), "")
    read = tokens_read(tmp_path, "sentiment", asks)
    assert 4 <= read <= 12
    limited = roofline(tmp_path, "sentiment", "cpu", RATES, 8, 1000, "requests", read=read)
    assert limited is not None and limited.operations_each == pytest.approx(2 * matrices * read)


def test_a_generators_needs_are_those_of_its_decoder_for_one_beam(tmp_path: Path) -> None:
    for name, width in (("narrow.onnx", 4), ("wide.onnx", 8)):
        weights = {"w": np.ones((8, width), "f")}
        model = graph([node("MatMul", ["x", "w"], "y")], [floats("x", "n", 8)], [floats("y", "n", width)], weights)
        onnx.save(model, str(tmp_path / name))
    files = {"encoder": "wide.onnx", "decoder": {"4": "wide.onnx", "1": "narrow.onnx"}}
    (tmp_path / "engine.json").write_text(json.dumps({"files": files}))
    found = of_generator(tmp_path)
    assert found is not None and (found.encoder.numbers, found.decoder.numbers) == (64.0, 32.0)
