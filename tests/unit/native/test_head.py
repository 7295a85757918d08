"""Int8Head and Int8HeadOutliers: the logits of Int8Linear, and the first of the best columns of each row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.native.reference import Linear, assert_same_bits, random_linear, random_rows
from tests.unit.native.sessions import Operator

YES, NO = np.array(True), np.array(False)


@pytest.mark.parametrize("outputs", [1, 15, 64, 65, 130, 1100])  # 1,100: three tasks of eight panels
@pytest.mark.parametrize("threads", [1, 3])
def test_the_head_gives_the_logits_of_the_linear_and_the_best_ids(library: Path, outputs: int, threads: int) -> None:
    linear, x = random_linear(100, outputs), random_rows(33, 100)
    operator, expected = Operator(library, "Int8Head", linear, threads), linear(x)
    for count in (1, 6, 7, 33):
        logits, ids = operator(x[:count], wants_logits=YES)
        assert_same_bits(logits, expected[:count])
        np.testing.assert_array_equal(ids, expected[:count].argmax(1, keepdims=True))


def test_more_rows_than_one_search_block_have_correct_ids(library: Path) -> None:
    linear, x = random_linear(64, 600), random_rows(300, 64)
    logits, ids = Operator(library, "Int8Head", linear, threads=2)(x, wants_logits=YES)
    assert_same_bits(logits, linear(x))
    np.testing.assert_array_equal(ids[:, 0], linear(x).argmax(1))


def test_without_logits_the_ids_are_the_same(library: Path) -> None:
    linear, x = random_linear(100, 1100), random_rows(4, 5, 100)
    logits, ids = Operator(library, "Int8Head", linear)(x, wants_logits=NO)
    assert logits.shape == (0, 5, 1100)
    np.testing.assert_array_equal(ids[..., 0], linear(x.reshape(20, 100)).argmax(1).reshape(4, 5))


@pytest.mark.parametrize("places", [(3, 9), (3, 19), (20, 67), (62, 65), (100, 700), (513, 1030, 1031)])
def test_the_first_of_equal_columns_wins(library: Path, places: tuple[int, ...]) -> None:
    linear, x = random_linear(100, 1100), random_rows(33, 100)
    values, scale, bias = linear.values.copy(), linear.scale.copy(), linear.bias.copy()
    bias[:] = np.minimum(bias, 1)
    values[list(places)], scale[list(places)], bias[list(places)] = 0, 1, 1e9  # above all others, and equal
    _, ids = Operator(library, "Int8Head", Linear(values, scale, bias), threads=2)(x, wants_logits=NO)
    np.testing.assert_array_equal(ids, places[0])


def test_a_row_that_is_not_finite_has_the_first_column(library: Path) -> None:
    linear, x = random_linear(100, 1100), random_rows(33, 100)
    clean = linear(x).argmax(1)
    x[7, 3] = np.inf
    logits, ids = Operator(library, "Int8Head", linear)(x, wants_logits=YES)
    assert np.isnan(logits[7]).all()
    np.testing.assert_array_equal(ids[:, 0], np.where(np.arange(33) == 7, 0, clean))


def test_padding_columns_never_win_over_negative_logits(library: Path) -> None:
    """Columns behind the last have sums of 0, which would be better."""
    linear = random_linear(100, 65)
    below = Linear(linear.values, linear.scale, np.full(65, -1e6, np.float32))
    x = random_rows(33, 100)
    _, ids = Operator(library, "Int8Head", below)(x, wants_logits=NO)
    np.testing.assert_array_equal(ids[:, 0], below(x).argmax(1))


@pytest.mark.parametrize("count", [0, 1, 5, 256])
@pytest.mark.parametrize("outputs", [63, 1100])
def test_outlier_columns_are_added_in_float32(library: Path, outputs: int, count: int) -> None:
    linear, x, outliers = random_linear(100, outputs), random_rows(150, 100), random_rows(150, count)
    columns = random_rows(outputs, count, seed=2)
    operator = Operator(library, "Int8HeadOutliers", linear, threads=2, columns=columns)
    outliers[[7, 140], :1], x[9, 0] = np.nan, np.inf
    expected = linear(x, outliers, columns)
    best = np.where(np.isnan(expected), -np.inf, expected).argmax(1)
    for rows in (1, 6, 33, 150):
        logits, ids = operator(x[:rows], outliers=outliers[:rows], wants_logits=YES)
        assert_same_bits(logits, expected[:rows])
        np.testing.assert_array_equal(ids[:, 0], best[:rows])
        _, ids = operator(x[:rows], outliers=outliers[:rows], wants_logits=NO)
        np.testing.assert_array_equal(ids[:, 0], best[:rows])


@pytest.mark.parametrize("shape", [(0, 100), (3, 0, 100)])
def test_a_head_without_rows_gives_empty_outputs(library: Path, shape: tuple[int, ...]) -> None:
    operator = Operator(library, "Int8Head", random_linear(100, 65))
    for want in (YES, NO):
        logits, ids = operator(np.zeros(shape, np.float32), wants_logits=want)
        assert ids.shape == (*shape[:-1], 1) and logits.size == 0
