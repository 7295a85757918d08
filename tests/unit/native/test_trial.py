"""The trials that choose kernels: kernels with other results and slower ones are rejected."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tests.rigs.machine.processors import CPUINFO, FLAGS


@pytest.mark.parametrize(
    ("tried", "known", "chosen"),
    [
        ("avx512-vnni", "amx-int8", True),  # emulated tiles take a hundred times as long
        ("amx-int8", "avx512-vnni", False),
        ("wrong panel", "amx-int8", False),
        ("wrong best", "amx-int8", False),
    ],
)
def test_kernels_are_chosen_that_are_equal_and_faster(any_library: Path, tried: str, known: str, chosen: bool) -> None:
    trial = ctypes.CDLL(str(any_library)).hfx_equal_and_faster
    trial.restype = ctypes.c_bool
    assert trial(tried.encode(), known.encode()) is chosen


@pytest.mark.parametrize(
    ("tried", "known", "chosen"),
    [
        ("avx512-vnni", "slow panel", True),
        ("slow panel", "avx512-vnni", False),
        ("wrong panel", "slow panel", False),
    ],
)
def test_kernels_for_weights_from_memory_are_chosen_that_are_equal_and_clearly_faster(
    any_library: Path, tried: str, known: str, chosen: bool
) -> None:
    trial = ctypes.CDLL(str(any_library)).hfx_equal_and_faster_from_memory
    trial.restype = ctypes.c_bool
    assert trial(tried.encode(), known.encode()) is chosen


@pytest.mark.skipif("AuthenticAMD" not in CPUINFO or "avx512_bf16" not in FLAGS, reason="needs fast AVX512-BF16")
@pytest.mark.parametrize(("name", "has_pairs"), [("avx512-vnni", True), ("amx-int8", True), ("avx2", False)])
def test_pairs_of_bfloat16_are_multiplied_where_that_is_equal_and_faster(
    any_library: Path, name: str, has_pairs: bool
) -> None:
    trial = ctypes.CDLL(str(any_library)).hfx_should_multiply_pairs
    trial.restype = ctypes.c_bool
    assert trial(name.encode()) is has_pairs
