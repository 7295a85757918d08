"""Norms and activation functions in OpenVINO, and whole stacks of a net, against the numpy reading of the blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.families import find_family
from hfx.exporter.families.family import resolve_config
from hfx.exporter.graph.blocks import Activation, Net, Norm, constant
from hfx.exporter.graph.reference import ACTIVATIONS, run_net
from hfx.exporter.openvino.attention import EncoderAttention, source_bias
from hfx.exporter.openvino.graph import ANY, OpenVinoGraph
from hfx.exporter.openvino.linear import LinearWriter
from hfx.exporter.openvino.stack import StackWriter, activation, no_cross_attention, norm
from hfx.exporter.tensors import CheckpointTensors
from tests.unit import tiny_generators
from tests.unit.openvino_driver import Compiled

Array = NDArray[Any]
WIDTH = 72
ROWS = np.random.default_rng(0).standard_normal((7, WIDTH)).astype(np.float32)
ROWS[1] *= 1e-4
ROWS[2] += 300
ROWS[3] = 0
ROWS[4, 9] = 5e4  # one channel has nearly all of the energy
WEIGHT, BIAS = (np.random.default_rng(seed).standard_normal(WIDTH).astype(np.float32) for seed in (1, 2))


def close(got: Array, want: Array, share: float = 2e-6) -> bool:
    return bool(np.abs(got - want).max() <= share * np.abs(want).max())


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 0.1])
@pytest.mark.parametrize(("kind", "biased"), [("layer", True), ("layer", False), ("rms", False)])
def test_a_norm_is_its_formula_row_by_row(tmp_path: Path, kind: Any, biased: bool, epsilon: float) -> None:
    graph = OpenVinoGraph("norm")
    bias = constant("b", BIAS) if biased else None
    block = Norm("n", kind, constant("w", WEIGHT), bias, epsilon)
    graph.output("y", norm(graph, graph.input("x", np.float32, [ANY, WIDTH]), block))
    graph.save(tmp_path / "norm.xml")
    opened = Compiled(tmp_path / "norm.xml")
    got = opened({"x": ROWS})["y"]
    rows = ROWS.astype(np.float64)
    middle = rows - rows.mean(1, keepdims=True) if kind == "layer" else rows
    want = middle / np.sqrt((middle**2).mean(1, keepdims=True) + epsilon) * WEIGHT + (BIAS if biased else 0)
    assert np.isfinite(got).all()
    for at in (0, 1, 2, 4, 5):
        # A row far from zero has lost digits before its mean is taken off.
        assert close(got[at], want[at], 1e-4 if at == 2 and kind == "layer" else 2e-5), at
        assert close(opened({"x": ROWS[at : at + 1]})["y"][0], got[at])
    assert close(got[3], want[3]) or epsilon < 1e-10


@pytest.mark.parametrize("kind", get_args(Activation))
def test_an_activation_is_its_formula(tmp_path: Path, kind: Activation) -> None:
    graph = OpenVinoGraph("activation")
    graph.output("y", activation(graph, graph.input("x", np.float32, [ANY, 201]), kind))
    graph.save(tmp_path / "activation.xml")
    values = np.concatenate([np.linspace(-12, 12, 199), [-80.0, 80.0]]).astype(np.float32)[None]
    got = Compiled(tmp_path / "activation.xml")({"x": values})["y"]
    assert np.abs(got - ACTIVATIONS[kind](values)).max() < 2e-6 * 80


def net_of(folder: Path, name: str) -> Net:
    checkpoint = tiny_generators.save(folder, tiny_generators.build(name))
    return find_family(checkpoint).read(resolve_config(checkpoint), CheckpointTensors(checkpoint))


@pytest.mark.parametrize("name", ["bart", "mbart", "pegasus", "marian", "t5", "t5-gated", "t5-silu"])
def test_an_encoders_stack_is_what_its_blocks_mean(tmp_path: Path, name: str) -> None:
    """Pre and post norm, positions, scaled embeddings, gates, biases by distance longer than their table."""
    net = net_of(tmp_path, name)
    assert net.encoder is not None
    ids = np.random.default_rng(3).integers(3, 100, (2, 37))
    graph = OpenVinoGraph("encoder")
    from openvino import opset16 as ops

    fed = graph.input("ids", np.int64, [ANY, ANY])
    lead, flat = ops.shape_of(fed), graph.const([-1], np.int64)
    length = ops.gather(lead, graph.const(1, np.int64), graph.const(0, np.int64))
    places = graph.input("places", np.int64, [ANY])
    bias = None if net.encoder.bias is None else source_bias(graph, length, net.encoder.bias)
    linear = LinearWriter(graph, "fp32", 127, 32, "group")
    stack = StackWriter(graph, linear, "fp32", EncoderAttention(graph, lead, bias), no_cross_attention)
    graph.output("hidden", stack(net.encoder, ops.reshape(fed, flat, False), places))
    graph.save(tmp_path / "encoder.xml")
    got = Compiled(tmp_path / "encoder.xml")({"ids": ids, "places": np.tile(np.arange(37), 2)})["hidden"]
    seen: dict[str, Array] = {}
    run_net(net, ids[:, :1], ids, lambda block, output: seen.setdefault(block.name, output))
    last = net.encoder.final_norm or net.encoder.layers[-1].norms[-1]
    assert close(got.reshape(2, 37, -1), seen[last.name], 5e-6)
