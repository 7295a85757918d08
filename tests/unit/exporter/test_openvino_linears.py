"""OpenVINO's linears of every format against numpy, on rows that are hard to quantize, alone and beside such rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import Linear, constant
from hfx.exporter.openvino.generator import activations_for, dynamic_group
from hfx.exporter.openvino.graph import ANY, OpenVinoGraph
from hfx.exporter.openvino.linear import Activations, LinearWriter
from hfx.exporter.quantize.generator import FORMATS, WeightFormat
from tests.rigs.openvino_driver import FORMS, Compiled
from tests.rigs.processors import FEWEST_ROWS, LEVELS, error, int8_error

Array = NDArray[Any]
OUTPUTS = 96
WIDTHS = (256, 200, 80, 40, 50, 51)  # a block of 32 divides the first only, and a group of 128 too
GENERATOR = np.random.default_rng(0)
# Relative error of a normal row.
ERRORS: dict[WeightFormat, float] = {"fp32": 1e-6, "int8": int8_error(0.015), "int4": 0.12}


def weights(width: int) -> Array:
    return np.random.default_rng(width).standard_normal((OUTPUTS, width)).astype(np.float32)


def hard_rows(width: int) -> Array:
    """A normal row, one with an outlier, zeros, and a row of outliers."""
    rows = GENERATOR.standard_normal((4, width)).astype(np.float32)
    rows[1, 5] = 60
    rows[2] = 0
    rows[3] *= 1e4
    return rows


def opened(
    folder: Path, form: WeightFormat, activations: Activations, width: int, biased: bool = False
) -> Callable[[Array], Array]:
    """One linear, written, read and compiled: x [rows, width] -> y [rows, OUTPUTS]."""
    graph = OpenVinoGraph("linear")
    x = graph.input("x", np.float32, [ANY, width])
    bias = constant("b", np.arange(OUTPUTS, dtype=np.float32)) if biased else None
    linear = LinearWriter(graph, form, LEVELS, 32, activations)
    graph.output("y", linear(x, Linear("l", constant("w", weights(width)), bias)))
    graph.save(folder / "linear.xml")
    group = dynamic_group(FORMATS[form])
    compiled = Compiled(folder / "linear.xml", DYNAMIC_QUANTIZATION_GROUP_SIZE=str(group))
    return lambda rows: compiled({"x": rows})["y"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("form", "activations"), FORMS)
def test_a_linear_multiplies(tmp_path: Path, form: WeightFormat, activations: Activations, width: int) -> None:
    rows = hard_rows(width)
    got = opened(tmp_path, form, activations, width)(rows)
    assert got.shape == (4, OUTPUTS) and np.isfinite(got).all()
    for row in (0, 3):
        assert error(got[row], rows[row] @ weights(width).T) < ERRORS[form]


@pytest.mark.parametrize(("form", "activations"), FORMS)
def test_a_bias_is_added_and_a_row_of_zeros_is_the_bias(
    tmp_path: Path, form: WeightFormat, activations: Activations
) -> None:
    rows, bias = hard_rows(200), np.arange(OUTPUTS, dtype=np.float32)
    got = opened(tmp_path, form, activations, 200, biased=True)(rows)
    assert (got[2] == bias).all()
    assert error(got[0] - bias, rows[0] @ weights(200).T) < ERRORS[form]


@pytest.mark.parametrize("width", [256, 80])
@pytest.mark.parametrize(("form", "activations"), FORMS)
def test_a_row_is_the_same_alone_and_beside_outliers(
    tmp_path: Path, form: WeightFormat, activations: Activations, width: int
) -> None:
    linear = opened(tmp_path, form, activations, width)
    rows = GENERATOR.standard_normal((64, width)).astype(np.float32)
    rows[1::2] *= 1e6  # every second is a neighbour of outliers
    together = linear(rows)
    # To the bit wherever activations are quantized; where OpenVINO leaves them alone, as it does with rows shorter than
    # a group, sums of floats are added up in an order of their number of rows.
    to_the_bit = form != "fp32" and (activations == "row" or width >= 128)
    for first, last in ((0, 0), (1, 1), (2, 2), (63, 63), (2, 5), (60, 62), (16, 48)):
        apart = linear(np.repeat(rows[first : last + 1], FEWEST_ROWS, axis=0))[::FEWEST_ROWS]
        if to_the_bit:
            assert np.array_equal(apart, together[first : last + 1])
        assert max(map(error, apart, together[first : last + 1])) < 1e-6


def test_linears_of_one_input_quantize_it_once() -> None:
    graph = OpenVinoGraph("linears")
    x = graph.input("x", np.float32, [ANY, 64])
    linear = LinearWriter(graph, "int8", LEVELS, 32, "row")
    for name in ("a", "b"):
        graph.output(name, linear(x, Linear(name, constant(name, weights(64)))))
    assert [node.get_type_name() for node in graph.model().get_ops()].count("FakeQuantize") == 1


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("processor : 0\nflags\t\t: fpu avx512_vnni amx_tile amx_int8\nbugs :\n", "row"),
        ("processor : 0\nflags\t\t: fpu avx512_vnni\nbugs : amx_int8\n", "group"),
        ("Features : asimd\n", "group"),
        (None, "group"),
    ],
)
def test_the_processor_decides_how_activations_are_quantized(tmp_path: Path, text: str | None, chosen: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if text is not None:
        cpuinfo.write_text(text)
    assert activations_for(cpuinfo) == chosen
