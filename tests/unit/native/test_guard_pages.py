"""No kernel reads or writes beyond a tensor: each tensor lies between inaccessible pages."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.unit.native.guarded import copy_of, guarded
from tests.unit.native.reference import Int4Linear, assert_same_bits, random_linear, random_rows
from tests.unit.native.sessions import INPUTS, model_of, open_model, options

SHAPES = [(1, 1), (3, 17), (16, 64), (65, 63), (100, 130), (64, 520)]
COUNTS, OUTLIERS = (1, 6, 7, 16, 33), 3


def run_guarded(
    library: Path,
    operator: str,
    shape: tuple[int, int],
    counts: Iterable[int],
    at_end: bool,
    padded: bool = False,
    linear: Int4Linear | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (y, its expected value) for each count of rows; weights, inputs and outputs are all guarded.

    With `padded`, all rows are one text, of which the first third are tokens.
    """
    int8 = random_linear(*shape)
    more = {"columns": random_rows(shape[1], OUTLIERS, seed=2)} if operator == "Int8HeadOutliers" else {}
    model, settings, constants = model_of(operator, linear or int8, padded, **more), options(library), []
    for tensor in model.graph.initializer:
        constants.append(copy_of(numpy_helper.to_array(tensor), at_end))
        value = onnxruntime.OrtValue.ortvalue_from_numpy(constants[-1])
        assert value.data_ptr() == constants[-1].ctypes.data
        settings.add_initializer(tensor.name, value)
        constants.append(value)
    session = open_model(model, settings)
    for count in counts:
        x = random_rows(count, shape[0])
        inputs = {"residual": random_rows(count, shape[1]), "wants_logits": np.array(True)}
        inputs["outliers"] = random_rows(count, OUTLIERS)
        inputs["last"] = np.array([count // 3], np.int32)
        fed_names = ("x", *INPUTS.get(operator, ()), *(["last"] if padded else []))
        fed = {name: copy_of({"x": x, **inputs}[name], at_end) for name in fed_names}
        y = {"y": guarded((count, shape[1]), np.float32, at_end)}
        if "Head" in operator:
            y["ids"] = guarded((count, 1), np.int64, at_end)
        binding = session.io_binding()
        for bind, arrays in ((binding.bind_input, fed), (binding.bind_output, y)):
            for name, array in arrays.items():
                bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding)
        expected = linear(x) if linear else int8(x, fed.get("outliers"), more.get("columns"))
        expected = expected + fed.get("residual", np.float32(0))
        if padded:
            expected[count // 3 + 1 :] = 0
        yield y["y"], expected


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("operator", ["Int8Linear", "Int8LinearAdd", "Int8Head", "Int8HeadOutliers"])
def test_int8_operators_touch_nothing_beyond_a_tensor(library: Path, operator: str, at_end: bool) -> None:
    for shape in SHAPES:
        for found, expected in run_guarded(library, operator, shape, COUNTS, at_end):
            assert_same_bits(found, expected)


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("operator", ["Int8Linear", "Int8LinearAdd"])
def test_padded_operators_touch_nothing_beyond_a_tensor(library: Path, operator: str, at_end: bool) -> None:
    for shape in SHAPES:
        for found, expected in run_guarded(library, operator, shape, COUNTS, at_end, padded=True):
            assert_same_bits(found, expected)


@pytest.mark.parametrize("at_end", [True, False])
def test_a_guard_page_ends_a_process_that_reads_it(at_end: bool) -> None:
    beyond = "array.ctypes.data + array.nbytes" if at_end else "array.ctypes.data - 1"
    code = f"""
import ctypes, numpy
from tests.unit.native.guarded import guarded
array = guarded((5,), numpy.int8, {at_end})
ctypes.string_at(array.ctypes.data, 5)
print("within")
ctypes.string_at({beyond}, 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("within\n", -signal.SIGSEGV)
