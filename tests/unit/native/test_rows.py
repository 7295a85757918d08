"""Int8Rows: rows of a table that is stored in the layout of a head's weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from tests.unit.native.reference import assert_same_bits, random_linear
from tests.unit.native.sessions import Operator


@pytest.mark.parametrize("inputs", [1, 63, 64, 100])
@pytest.mark.parametrize("outputs", [1, 64, 130])
def test_int8_rows_are_looked_up_by_id(any_library: Path, inputs: int, outputs: int) -> None:
    linear = random_linear(inputs, outputs)
    table = linear.values.astype(np.float32) * linear.scale[:, None]
    ids = np.random.default_rng(0).integers(-outputs, outputs, (2, 3, 5))
    assert_same_bits(Operator(any_library, "Int8Rows", linear)(ids), table[ids])


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_a_single_id_and_no_id_are_looked_up(any_library: Path, shape: tuple[int, ...]) -> None:
    linear = random_linear(100, 130)
    found = Operator(any_library, "Int8Rows", linear)(np.full(shape, 7, np.int64))
    assert_same_bits(found, np.broadcast_to(linear.values[7] * linear.scale[7], (*shape, 100)))


@pytest.mark.parametrize("beyond", [130, -131, 2**63 - 1, -(2**63)])
def test_an_id_beyond_the_table_is_refused(any_library: Path, beyond: int) -> None:
    operator = Operator(any_library, "Int8Rows", random_linear(100, 130))
    with pytest.raises(InvalidArgument, match="hfx: "):
        operator(np.array([1, beyond]))
