"""Weights copied into huge pages: equal answers, one copy of equal weights, and memory that is freed."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import onnxruntime
import psutil
import pytest

from tests.rigs.machine.huge_pages import AVAILABLE, copied
from tests.unit.native.libraries import SANITIZED
from tests.unit.native.reference import Linear, assert_same_bits, random_linear, random_rows
from tests.unit.native.sessions import Operator, model_of, options

INPUTS, OUTPUTS = 2048, 4096
BYTES = INPUTS * OUTPUTS


def opened(library: Path, linear: Linear) -> Operator:
    """Return a session with copied weights."""
    switch = ctypes.CDLL(str(library)).hfx_huge_pages
    switch(1)
    try:
        return Operator(library, "Int8Linear", linear)
    finally:
        switch(0)


def test_weights_in_huge_pages_give_the_same_answers(library: Path) -> None:
    for inputs, outputs in ((1, 1), (100, 130), (768, 700)):
        linear, x = random_linear(inputs, outputs), random_rows(19, inputs)
        assert_same_bits(opened(library, linear)(x), linear(x))


@pytest.mark.skipif(not AVAILABLE or SANITIZED, reason="the system has no huge pages, or a sanitizer keeps memory")
def test_equal_weights_are_copied_once_and_given_back(any_library: Path) -> None:
    linear, other, x = random_linear(INPUTS, OUTPUTS), random_linear(INPUTS, OUTPUTS), random_rows(3, INPUTS)
    other.values[-1, -1] ^= 1
    before = copied()
    usual = Operator(any_library, "Int8Linear", linear)
    assert copied() == before
    first = opened(any_library, linear)
    one = copied() - before
    assert BYTES <= one < 1.6 * BYTES
    second, third = opened(any_library, linear), opened(any_library, other)
    two = copied() - before
    assert one + BYTES // 2 < two < 2.6 * BYTES
    del first
    assert copied() - before == two
    assert_same_bits(second(x), usual(x))
    assert_same_bits(third(x), other(x))
    del second
    assert copied() - before < 1.6 * BYTES
    assert_same_bits(third(x), other(x))
    del third
    assert copied() == before


@pytest.mark.skipif(not AVAILABLE or SANITIZED, reason="the system has no huge pages, or a sanitizer keeps memory")
def test_weights_of_a_file_leave_memory_once_they_are_copied(any_library: Path, tmp_path: Path) -> None:
    linear, x, file = random_linear(INPUTS, OUTPUTS), random_rows(3, INPUTS), tmp_path / "weights.bin"
    onnx.save(model_of("Int8Linear", linear), tmp_path / "model.onnx", save_as_external_data=True, location=file.name)
    held, answers = [], []
    for copies in (False, True):
        switch = ctypes.CDLL(str(any_library)).hfx_huge_pages
        switch(copies)
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options(any_library))
        switch(0)
        answers.append(session.run(None, {"x": x})[0])
        held.append(in_memory(file))
        del session
    assert held[1] < BYTES // 8 < BYTES <= held[0]
    assert_same_bits(*answers)


def in_memory(file: Path) -> int:
    """Return the bytes of a mapped file that are in this process's memory."""
    maps = psutil.Process().memory_maps(grouped=True)
    return sum(each.rss for each in maps if each.path == str(file))


def test_sessions_of_several_threads_share_copies(any_library: Path) -> None:
    linears, x = [random_linear(256, 300 + n % 3) for n in range(24)], random_rows(2, 256)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda linear: opened(any_library, linear)(x), linears))
    for linear, y in zip(linears, found, strict=True):
        assert_same_bits(y, linear(x))
