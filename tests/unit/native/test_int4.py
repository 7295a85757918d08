"""int4 operators give the bits of numpy's integers and float32 block sums, in any batch, with any kernels."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from tests.unit.native.reference import ACTIVATIONS, assert_same_bits, random_int4, random_rows
from tests.unit.native.sessions import Operator, one_node, open_model, options
from tests.unit.native.test_fuzz import SIZES, fuzz, rows
from tests.unit.native.test_guard_pages import run_guarded

BLOCKS = (16, 32, 64, 128)
YES, NO = np.array(True), np.array(False)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_number_of_rows_gives_the_bits_of_numpy(library: Path, block: int) -> None:
    linear, x = random_int4(300, 130, block), random_rows(70, 300)
    operator, expected = Operator(library, "Int4Linear", linear), linear(x)
    for count in range(1, 71):
        assert_same_bits(operator(x[:count]), expected[:count])


@pytest.mark.parametrize("block", BLOCKS)
def test_odd_widths_give_the_bits_of_numpy(library: Path, block: int) -> None:
    for inputs, outputs in product((1, 4, 63, 64, 65, 127, 129, 768), (1, 16, 63, 64, 65, 130)):
        linear, x = random_int4(inputs, outputs, block), random_rows(19, inputs)
        operator, expected = Operator(library, "Int4Linear", linear), linear(x)
        for count in (1, 8, 19):
            assert_same_bits(operator(x[:count]), expected[:count])


@pytest.mark.parametrize("threads", [1, 3])
def test_an_int4_row_has_the_same_bits_in_any_batch_with_any_threads(library: Path, threads: int) -> None:
    linear, x = random_int4(768, 700, 128), random_rows(130, 768)
    operator, expected = Operator(library, "Int4Linear", linear, threads), linear(x)
    for start, count in [(0, 1), (3, 5), (7, 6), (9, 7), (2, 12), (5, 17), (1, 33), (0, 129), (0, 130)]:
        assert_same_bits(operator(x[start : start + count]), expected[start : start + count])


def test_zeros_outliers_and_denormals_give_the_bits_of_numpy(library: Path) -> None:
    linear, x = random_int4(200, 70, 32), random_rows(40, 200)
    x[1], x[15], x[3, 7], x[4, 32:64] = 0, -0.0, 300, 0  # zeros, an outlier, a block of zeros
    x[5] = np.float32(1e-45) * np.arange(200, dtype=np.float32)
    x[7], x[11] = np.clip(x[7], -1, 1) * np.float32(1e-36), np.clip(x[11], -1, 1) * np.float32(1e38)
    assert_same_bits(Operator(library, "Int4Linear", linear)(x), linear(x))


@pytest.mark.parametrize("block", BLOCKS)
def test_the_largest_sums_give_the_bits_of_numpy(library: Path, block: int) -> None:
    linear, x = random_int4(256, 70, block), np.ones((9, 256), np.float32)
    linear.values[:35], linear.values[35:], x[1::2] = -8, 7, -1
    operator, expected = Operator(library, "Int4Linear", linear), linear(x)
    for count in (1, 3, 9):
        assert_same_bits(operator(x[:count]), expected[:count])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_change_only_their_own_int4_row(library: Path, value: float) -> None:
    linear, clean = random_int4(200, 70, 32), random_rows(40, 200)
    operator, expected = Operator(library, "Int4Linear", linear), linear(clean)
    for place in (0, 31, 32, 199):
        x = clean.copy()
        x[[2, 30], place] = value
        found, others = operator(x), np.delete(np.arange(40), [2, 30])
        assert np.isnan(found[[2, 30]]).all()
        assert_same_bits(found[others], expected[others])


def test_int4_linears_keep_leading_dimensions(library: Path) -> None:
    linear, x = random_int4(65, 130, 32), random_rows(3, 5, 65)
    operator = Operator(library, "Int4Linear", linear)
    assert_same_bits(operator(x), linear(x.reshape(15, 65)).reshape(3, 5, 130))
    assert operator(x[:, :0]).shape == (3, 0, 130)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates_activations_and_residuals_are_those_of_int8(library: Path, name: str) -> None:
    linear, x, residual = random_int4(300, 130, 128), random_rows(33, 300), random_rows(33, 130)
    active = Operator(library, f"Int4Linear{name}", linear)(x)
    expected = ACTIVATIONS[name](linear(x).astype(np.float64))
    assert (np.abs(active - expected) <= 1e-6 * np.maximum(1, np.abs(expected))).all()
    gated = Operator(library, f"Int4LinearGated{name}", linear)(x)
    gate = Operator(library, f"Int4Linear{name}", linear.half(0))(x)
    assert_same_bits(gated, gate * linear.half(1)(x))
    assert_same_bits(Operator(library, "Int4LinearAdd", linear)(x, residual=residual), linear(x) + residual)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("outputs", [1, 65, 1100])
def test_the_int4_head_gives_logits_and_the_best_ids(library: Path, outputs: int, threads: int) -> None:
    linear, x = random_int4(100, outputs, 32), random_rows(150, 100)
    operator, expected = Operator(library, "Int4Head", linear, threads), linear(x)
    for count in (1, 7, 150):
        logits, ids = operator(x[:count], wants_logits=YES)
        assert_same_bits(logits, expected[:count])
        np.testing.assert_array_equal(ids[:, 0], expected[:count].argmax(1))
    none, ids = operator(x, wants_logits=NO)
    assert none.shape == (0, outputs)
    np.testing.assert_array_equal(ids[:, 0], expected.argmax(1))


@pytest.mark.parametrize(("inputs", "outputs", "block"), [(1, 1, 16), (63, 64, 32), (300, 130, 128)])
def test_int4_rows_are_looked_up_by_id(any_library: Path, inputs: int, outputs: int, block: int) -> None:
    linear = random_int4(inputs, outputs, block)
    table = linear.values.astype(np.float32) * linear.scale.repeat(block, axis=1)[:, :inputs]
    ids = np.random.default_rng(0).integers(-outputs, outputs, (2, 3, 5))
    operator = Operator(any_library, "Int4Rows", linear)
    assert_same_bits(operator(ids), table[ids])
    with pytest.raises(errors.InvalidArgument, match="hfx: "):
        operator(np.array([outputs]))


@pytest.mark.parametrize("name", ["Linear", "LinearGatedSilu", "LinearGelu", "LinearAdd", "Head", "Rows"])
@pytest.mark.parametrize("block", [16, 128])
def test_a_definition_computes_the_same_but_for_the_order_of_floats(any_library: Path, name: str, block: int) -> None:
    linear, operator = random_int4(300, 130, block), f"Int4{name}"
    fed = {"x": np.arange(130)} if name == "Rows" else {"x": random_rows(9, 300)}
    fed |= {"residual": random_rows(9, 130)} if name == "LinearAdd" else {}
    fed |= {"wants_logits": YES} if name == "Head" else {}
    found, defined = (Operator(each, operator, linear)(**fed) for each in (any_library, None))
    if name == "Head":
        np.testing.assert_array_equal(found[1], defined[1])
        found, defined = found[0], defined[0]
    np.testing.assert_allclose(found, defined, rtol=1e-5, atol=1e-5 * np.abs(found).max())


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("operator", ["Int4Linear", "Int4LinearAdd", "Int4Head"])
def test_int4_operators_touch_nothing_beyond_a_tensor(library: Path, operator: str, at_end: bool) -> None:
    for inputs, outputs, block in [(1, 1, 16), (3, 17, 32), (65, 63, 64), (100, 130, 32), (300, 65, 128)]:
        linear = random_int4(inputs, outputs, block)
        for found, expected in run_guarded(library, operator, (inputs, outputs), (1, 7, 33), at_end, linear=linear):
            assert_same_bits(found, expected)


LINEAR = random_int4(300, 130, 128)  # weights [3, 48, 64, 4], scales [3, 3, 64]


@pytest.mark.parametrize("operator", ["Int4Linear", "Int4LinearGatedSilu", "Int4Head", "Int4Rows"])
@pytest.mark.parametrize(
    "changes",
    [
        {"weights": (3, 47, 64, 4)}, {"weights": (3, 40, 64, 4)}, {"weights": (3, 64, 64, 4)}, {"weights": (3, 48, 64)},
        {"weights": (5, 48, 64, 4)}, {"weights": (0, 48, 64, 4)}, {"weights": (3, 0, 64, 4)}, {"weights": ()},
        {"scale": (3, 2, 64)}, {"scale": (3, 4, 64)}, {"scale": (130, 3)}, {"scale": (3, 3, 63)}, {"scale": (0, 3, 64)},
        {"in_features": 0}, {"in_features": 256}, {"in_features": 385}, {"in_features": 2**62}, {"in_features": -1},
        {"out_features": 0}, {"out_features": 128}, {"out_features": 193}, {"out_features": 2**63 - 1},
        {"block": 0}, {"block": -128}, {"block": 8}, {"block": 64}, {"block": 96}, {"block": 256}, {"block": 2**62},
    ],
    ids=str,
)  # fmt: skip
def test_inconsistent_shapes_and_attributes_are_refused(
    any_library: Path, operator: str, changes: dict[str, object]
) -> None:
    arrays, sizes = LINEAR.constants(), LINEAR.sizes()
    for name, value in changes.items():
        if isinstance(value, tuple):
            arrays[name] = np.zeros(value, arrays[name].dtype)
        else:
            sizes[name] = value
    if operator == "Int4Rows":
        del arrays["bias"]
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException, errors.Fail), match="hfx: "):
        open_model(one_node(operator, arrays, sizes), options(any_library))


@pytest.mark.full
@fuzz
@given(st.data(), SIZES, SIZES, st.sampled_from(BLOCKS), st.integers(1, 3))
def test_random_int4_inputs_give_the_bits_of_numpy(
    library: Path, data: st.DataObject, inputs: int, outputs: int, block: int, threads: int
) -> None:
    linear, x = random_int4(inputs, outputs, block), data.draw(rows(inputs))
    expected = linear(x)
    assert_same_bits(Operator(library, "Int4Linear", linear, threads)(x), expected)
    _, ids = Operator(library, "Int4Head", linear, threads)(x, wants_logits=NO)
    np.testing.assert_array_equal(ids[:, 0], np.where(np.isnan(expected), -np.inf, expected).argmax(1))
