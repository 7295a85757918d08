"""Norms and activation functions in OpenVINO, and whole stacks of a net, against the numpy reading of the blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import Activation, Norm, constant
from hfx.exporter.graph.reference import ACTIVATIONS
from hfx.exporter.openvino.graph import ANY, OpenVinoGraph
from hfx.exporter.openvino.stack import activation, norm
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
