"""The weight file: each tensor once, aligned, and refused where its pieces don't add up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.graph.writer import ALIGNMENT, WeightFile


def offset(tensor: Any) -> int:
    return int(tensor.external_data[1].value)


def test_tensors_are_written_in_pieces_at_aligned_offsets(tmp_path: Path) -> None:
    first, second = np.arange(7, dtype=np.int8), np.arange(12, dtype=np.float32).reshape(4, 3)
    with WeightFile(tmp_path / "w.bin") as weights:
        a = weights.add("a", np.int8, (7,), lambda: [first[:3], first[3:]])
        b = weights.add("b", np.float32, (4, 3), lambda: [second[:1], second[1:]])
    content = (tmp_path / "w.bin").read_bytes()
    assert offset(a) == 0 and offset(b) == ALIGNMENT
    assert content[:7] == first.tobytes() and content[ALIGNMENT:] == second.tobytes()
    assert b.external_data[0].value == "w.bin"


def test_a_name_is_written_once(tmp_path: Path) -> None:
    calls = []

    def pieces() -> Iterator[NDArray[np.float32]]:
        calls.append(1)
        yield np.ones(3, np.float32)

    with WeightFile(tmp_path / "w.bin") as weights:
        assert weights.add("a", np.float32, (3,), pieces) is weights.add("a", np.float32, (3,), pieces)
    assert len(calls) == 1


def test_pieces_of_another_size_are_an_error(tmp_path: Path) -> None:
    with WeightFile(tmp_path / "w.bin") as weights, pytest.raises(ValueError, match="12 bytes"):
        weights.add("a", np.float32, (4,), lambda: [np.ones(3, np.float32)])
