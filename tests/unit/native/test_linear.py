"""Int8Linear and its variants give the bits of numpy's integers and float32 epilogue, in any batch and kernels."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.unit.native.reference import (
    ACTIVATIONS,
    Linear,
    assert_same_bits,
    random_linear,
    random_rows,
)
from tests.unit.native.sessions import Operator

INPUTS = (1, 3, 16, 64, 65, 100, 127, 768)
OUTPUTS = (1, 15, 16, 17, 63, 64, 65, 130)
TINY = np.float32(1e-45)


def test_every_number_of_rows_gives_the_bits_of_numpy(library: Path) -> None:
    linear, x = random_linear(100, 130), random_rows(130, 100)
    operator, expected = Operator(library, "Int8Linear", linear), linear(x)
    for count in range(1, 131):
        assert_same_bits(operator(x[:count]), expected[:count])


def test_odd_widths_give_the_bits_of_numpy(library: Path) -> None:
    for inputs, outputs in product(INPUTS, OUTPUTS):
        linear, x = random_linear(inputs, outputs), random_rows(19, inputs)
        operator, expected = Operator(library, "Int8Linear", linear), linear(x)
        for count in (1, 8, 19):
            assert_same_bits(operator(x[:count]), expected[:count])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_int8_row_has_the_same_bits_in_any_batch_with_any_threads(library: Path, threads: int) -> None:
    linear, x = random_linear(768, 700), random_rows(130, 768)
    operator, expected = Operator(library, "Int8Linear", linear, threads), linear(x)
    for start, count in [(0, 1), (3, 5), (7, 6), (9, 7), (2, 12), (4, 13), (5, 17), (1, 33), (0, 129), (0, 130)]:
        assert_same_bits(operator(x[start : start + count]), expected[start : start + count])


@pytest.mark.parametrize("most", [64, 32])  # AVX2 adds the products of two weights in 16 bits, or of four
@pytest.mark.parametrize("name", ["", "GatedSilu"])
def test_small_weights_give_the_same_bits_with_all_kernels(
    library: Path, any_library: Path, name: str, most: int
) -> None:
    usual, x = random_linear(100, 130), random_rows(70, 100)
    linear = Linear(np.clip(usual.values, -most, most), usual.scale, usual.bias)
    found, expected = (Operator(each, f"Int8Linear{name}", linear)(x) for each in (library, any_library))
    assert_same_bits(found, expected)
    if not name:
        assert_same_bits(found, linear(x))


def test_zeros_outliers_and_denormals_give_the_bits_of_numpy(library: Path) -> None:
    usual, x = random_linear(200, 70), random_rows(40, 200)
    linear = Linear(usual.values, usual.scale, np.zeros(70, np.float32))  # a bias would hide tiny values
    x[1] = 0
    x[3, 7] = 300  # an outlier
    x[5] = TINY * np.arange(200, dtype=np.float32)  # denormals
    x[7], x[9], x[10] = (np.clip(x[7], -1, 1) * np.float32(size) for size in (1e-30, 1e-36, 1e-38))
    x[11] = np.clip(x[11], -1, 1) * np.float32(1e38)
    x[13] = np.where(x[13] > 0, 1, -1) * np.finfo(np.float32).max
    x[15] = -0.0
    assert_same_bits(Operator(library, "Int8Linear", linear)(x), linear(x))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_change_only_their_own_int8_row(library: Path, value: float) -> None:
    linear, clean = random_linear(200, 70), random_rows(40, 200)
    operator, expected = Operator(library, "Int8Linear", linear), linear(clean)
    for place in (0, 17, 191, 192, 199):
        x = clean.copy()
        x[[2, 30], place] = value
        found = operator(x)
        assert np.isnan(found[[2, 30]]).all()
        others = np.delete(np.arange(40), [2, 30])
        assert_same_bits(found[others], expected[others])


@pytest.mark.parametrize("weights", [(127, -127, -128), (64, -64, 63), (65, -65, 1)])
def test_extreme_weights_of_the_most_inputs_do_not_overflow(library: Path, weights: tuple[int, ...]) -> None:
    """AVX2 without VNNI has a method for weights up to 64, and another for larger ones."""
    values = np.repeat(np.array(weights, np.int8)[:, None], 65536, axis=1)
    linear = Linear(values, np.ones(3, np.float32), np.zeros(3, np.float32))
    x = np.repeat(np.array([[1], [-1]], np.float32), 65536, axis=1).repeat(5, axis=0)
    assert_same_bits(Operator(library, "Int8Linear", linear)(x), linear(x))


@pytest.mark.parametrize(
    "weights",
    [
        (64, 64, 0, 0),
        (32, 32, 32, 32),
        (1, 127, 0, 0),
        (-128, 0, 0, 0),
        (0, -64, -63, -1),
        (64, 1, 64, 0),
        (-64, 0, 0, -65),
    ],
)
def test_the_largest_weights_that_avx2_adds_in_16_bits_do_not_overflow(library: Path, weights: tuple[int, ...]) -> None:
    """Up to 128, the products of four inputs are added; the last two are beyond."""
    four = np.reshape(weights, (2, 1, 2))  # of inputs 8 i + (0, 1) and 8 i + (4, 5)
    values = np.tile(np.concatenate([four, four[..., ::-1]], axis=1).reshape(8), (70, 64)).astype(np.int8)
    linear = Linear(values, np.ones(70, np.float32), np.zeros(70, np.float32))
    x = np.repeat(np.array([[1], [-1]], np.float32), 512, axis=1).repeat(9, axis=0)
    assert_same_bits(Operator(library, "Int8Linear", linear)(x), linear(x))


def test_int8_linears_keep_leading_dimensions(library: Path) -> None:
    linear, x = random_linear(65, 130), random_rows(3, 5, 65)
    operator = Operator(library, "Int8Linear", linear)
    assert_same_bits(operator(x), linear(x.reshape(15, 65)).reshape(3, 5, 130))
    assert_same_bits(operator(x[0, 0]), linear(x[0, :1])[0])
    assert operator(x[:, :0]).shape == (3, 0, 130)
    assert operator(x[0, :0]).shape == (0, 130)


@pytest.mark.parametrize("outputs", [16, 63, 130])
def test_a_residual_is_added_last(library: Path, outputs: int) -> None:
    linear, x, residual = random_linear(100, outputs), random_rows(33, 100), random_rows(33, outputs)
    operator = Operator(library, "Int8LinearAdd", linear)
    assert_same_bits(operator(x, residual=residual), linear(x) + residual)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [255, 256, 257, 515, 801])
def test_rows_split_over_several_tasks_give_the_same_bits(library: Path, count: int, threads: int) -> None:
    linear, x, residual = random_linear(100, 130), random_rows(count, 100), random_rows(count, 130)
    assert_same_bits(Operator(library, "Int8Linear", linear, threads)(x), linear(x))
    assert_same_bits(Operator(library, "Int8LinearAdd", linear, threads)(x, residual=residual), linear(x) + residual)
    gated = Operator(library, "Int8LinearGatedRelu", linear, threads)
    assert_same_bits(gated(x), np.concatenate([gated(part) for part in np.array_split(x, 9)]))


def test_padded_tokens_split_over_several_tasks_give_the_same_bits(library: Path) -> None:
    linear, lengths = random_linear(100, 130), np.array([300, 1, 299, 150], np.int32)
    x, residual = random_rows(4, 300, 100), random_rows(4, 300, 130)
    operator = Operator(library, "Int8LinearAdd", linear, 2, padded=True)
    found, real = operator(x, residual=residual, last=lengths - 1), np.arange(300) < lengths[:, None]
    assert_same_bits(found[real], linear(x[real]) + residual[real])
    assert not found[~real].any()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["", "Gelu", "GatedSilu", "Add"])
def test_padding_is_zeros_and_tokens_are_what_they_are_without_it(library: Path, name: str, threads: int) -> None:
    linear, lengths = random_linear(100, 130), np.array([7, 1, 4, 2, 7], np.int32)
    x, residual = random_rows(5, 7, 100), random_rows(5, 7, 65 if "Gated" in name else 130)
    real = np.arange(7) < lengths[:, None]
    x[~real] = np.nan  # values that are not read can't spoil anything
    fed = {"residual": residual} if name == "Add" else {}
    found = Operator(library, "Int8Linear" + name, linear, threads, padded=True)(x, last=lengths - 1, **fed)
    alone = Operator(library, "Int8Linear" + name, linear, threads)
    for row, length in enumerate(lengths):
        own = {key: value[row, :length] for key, value in fed.items()}
        assert_same_bits(found[row, :length], alone(x[row, :length], **own))
    assert not found[~real].any()


def test_one_row_a_text_has_no_padding(library: Path) -> None:
    linear, x = random_linear(100, 130), random_rows(5, 100)
    found = Operator(library, "Int8Linear", linear, padded=True)(x, last=np.zeros(5, np.int32))
    assert_same_bits(found, linear(x))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_within_a_millionth_of_float64(library: Path, name: str) -> None:
    linear, x = random_linear(100, 130), random_rows(33, 100)
    x[1] *= np.float32(1e10)
    x[2] = 0
    products = linear(x).astype(np.float64)
    expected = ACTIVATIONS[name](products)
    found = Operator(library, f"Int8Linear{name}", linear)(x)
    assert (np.abs(found - expected) <= 1e-6 * np.maximum(1, np.abs(expected))).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("outputs", [2, 34, 130, 256])
def test_a_gated_linear_is_the_product_of_its_halves(library: Path, name: str, outputs: int) -> None:
    linear, x = random_linear(100, outputs), random_rows(33, 100)
    gated = Operator(library, f"Int8LinearGated{name}", linear)(x)
    first = Operator(library, f"Int8Linear{name}", linear.half(0))(x)
    assert_same_bits(gated, first * linear.half(1)(x))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_the_same_bits_with_all_kernels(library: Path, any_library: Path, name: str) -> None:
    linear, x = random_linear(100, 130), random_rows(33, 100)
    found, expected = (Operator(each, f"Int8Linear{name}", linear)(x) for each in (library, any_library))
    assert_same_bits(found, expected)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_nan_in_its_row(library: Path, name: str) -> None:
    linear, x = random_linear(64, 64), random_rows(9, 64)
    x[4, 4] = np.nan
    found = Operator(library, f"Int8Linear{name}", linear)(x)
    np.testing.assert_array_equal(np.isnan(found).all(1), np.arange(9) == 4)
    np.testing.assert_array_equal(np.isnan(found).any(1), np.arange(9) == 4)
