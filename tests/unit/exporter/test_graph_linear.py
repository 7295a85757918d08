"""Linears of every format compared with numpy, on rows that are hard to quantize; top-k and log-softmax graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from hfx.exporter.graph.blocks import Embedding, Linear, constant
from hfx.exporter.graph.generator import log_softmax_graph, top_k_graph
from hfx.exporter.graph.linear import LinearWriter
from hfx.exporter.graph.writer import GraphWriter, WeightFile
from hfx.exporter.quantize.generator import WeightFormat
from hfx.python_backends.engine.sessions import open_session
from tests.rigs.engine.watched_engine import ONE_THREAD
from tests.rigs.machine.processors import FEWEST_ROWS, LEVELS, error, int8_error

INPUTS, OUTPUTS = 200, 96  # 200 is no multiple of a block
GENERATOR = np.random.default_rng(0)
WEIGHT = GENERATOR.standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
BIAS = GENERATOR.standard_normal(OUTPUTS).astype(np.float32)
ROWS = GENERATOR.standard_normal((6, INPUTS)).astype(np.float32)
ROWS[1, 5] = 60  # an outlier
ROWS[2] = 0
ROWS[3] *= 1e-30
# Relative error of a normal row.
ERRORS: dict[WeightFormat, float] = {"fp32": 1e-6, "int8": int8_error(0.015), "int4": 0.12}


def session(folder: Path, weight_format: WeightFormat, biased: bool) -> Any:
    """Return a session of one linear: x [rows, inputs] -> y [rows, outputs]."""
    with WeightFile(folder / "weights.bin") as weights:
        writer = GraphWriter("linear", weights)
        x = writer.input("x", np.float32, ["rows", INPUTS])
        linear = LinearWriter(writer, weight_format, LEVELS, 32)
        block = Linear("l", constant("l.weight", WEIGHT), constant("l.bias", BIAS) if biased else None)
        writer.output("y", np.float32, ["rows", OUTPUTS], linear(x, block))
        writer.save(folder / "linear.onnx")
    return open_session(folder / "linear.onnx", ONE_THREAD)


def optimized(path: Path) -> onnx.ModelProto:
    """Return the graph that ONNX Runtime makes of a file if it has no native operators."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path.with_name("optimized.onnx"))
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return onnx.load(path.with_name("optimized.onnx"), load_external_data=False)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("weight_format", ERRORS)
def test_a_linear_of_each_format_is_near_numpy(tmp_path: Path, weight_format: WeightFormat, biased: bool) -> None:
    (got,) = session(tmp_path, weight_format, biased).run(None, {"x": ROWS})
    bias = BIAS if biased else np.zeros_like(BIAS)
    assert error(got[0] - bias, ROWS[0] @ WEIGHT.T) < ERRORS[weight_format]
    assert np.array_equal(got[2], bias), "a row of zeros"
    assert np.isfinite(got).all()


@pytest.mark.parametrize("weight_format", ERRORS)
def test_an_outlier_in_one_row_costs_the_others_nothing(tmp_path: Path, weight_format: WeightFormat) -> None:
    opened = session(tmp_path, weight_format, True)
    (together,) = opened.run(None, {"x": ROWS})
    alone = [opened.run(None, {"x": np.repeat(row[None], FEWEST_ROWS, axis=0)})[0][0] for row in ROWS]
    assert np.array_equal(np.stack(alone), together)


def test_a_tiny_row_keeps_its_precision(tmp_path: Path) -> None:
    (got,) = session(tmp_path, "int8", False).run(None, {"x": ROWS})
    assert error(got[3] * np.float32(1e30), ROWS[3] * np.float32(1e30) @ WEIGHT.T) < ERRORS["int8"]


@pytest.mark.parametrize(("weight_format", "largest"), ERRORS.items())
def test_one_table_is_embedding_and_head(tmp_path: Path, weight_format: WeightFormat, largest: float) -> None:
    table = Embedding("tokens", constant("tokens", WEIGHT), 3.0)
    with WeightFile(tmp_path / "weights.bin") as weights:
        writer = GraphWriter("embedding", weights)
        ids = writer.input("ids", np.int64, ["rows"])
        linear = LinearWriter(writer, weight_format, LEVELS, 32)
        rows = linear.rows(ids, table)
        writer.output("scores", np.float32, ["rows", OUTPUTS], linear.scores(rows, Linear("head", table.table)))
        writer.output("embedded", np.float32, ["rows", INPUTS], rows)
        writer.save(tmp_path / "embedding.onnx")
    ids_fed = np.array([0, 95, 7, 7])
    scores, embedded = open_session(tmp_path / "embedding.onnx", ONE_THREAD).run(None, {"ids": ids_fed})
    want = 3 * WEIGHT[ids_fed]
    assert error(embedded, want) < largest
    assert error(scores, want @ WEIGHT.T) < 2 * largest


def test_a_folded_head_is_not_transposed_at_run_time(tmp_path: Path) -> None:
    test_one_table_is_embedding_and_head(tmp_path, "int8", ERRORS["int8"])
    assert "Transpose" not in {node.op_type for node in optimized(tmp_path / "embedding.onnx").graph.node}


# Log-softmax and the best k

SCORES = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)


def test_log_softmax_is_torchs(tmp_path: Path) -> None:
    import torch

    log_softmax_graph(tmp_path / "log_softmax.onnx", 50)
    (got,) = open_session(tmp_path / "log_softmax.onnx", ONE_THREAD).run(["log_probs"], {"scores": SCORES})
    want = torch.log_softmax(torch.from_numpy(SCORES), -1).numpy()
    assert np.abs(got - want).max() < 1e-6


@pytest.mark.parametrize("k", [1, 7, 50])
def test_top_k_orders_by_score_and_then_by_id(tmp_path: Path, k: int) -> None:
    top_k_graph(tmp_path / "top_k.onnx")
    equal = np.zeros((2, 50), np.float32)
    equal[1, 25:] = 1
    equal[1, :5] = -np.inf
    scores = np.concatenate([SCORES, equal])
    values, ids = open_session(tmp_path / "top_k.onnx", ONE_THREAD).run(
        ["values", "ids"], {"scores": scores, "k": np.array([k])}
    )
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert np.array_equal(ids, order)
    assert np.array_equal(values, np.take_along_axis(scores, order, 1))
