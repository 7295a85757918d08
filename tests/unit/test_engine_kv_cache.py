"""Memory of rows: what is copied where, what costs memory, and that a move never touches its neighbours."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hfx.python_backends.engine.kv_cache import KvCache, LaneMemory
from hfx.python_backends.engine.kv_cache_cross import CrossCache, Encoded
from hfx.python_backends.engine.memory import Reserved
from hfx.python_backends.engine.spec import read_spec

from . import engine_toys as toys

LAYERS, ROWS, HEADS, CAPACITY, DIM = 2, 7, 3, 10, 8


def filled(dtype: str = "float32") -> KvCache:
    cache = KvCache(LAYERS, ROWS, HEADS, CAPACITY, DIM, dtype)
    cache.array[:] = np.random.default_rng(0).integers(-100, 100, cache.array.shape)
    return cache


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_copy_takes_the_used_positions_of_one_row_and_nothing_else(dtype: str) -> None:
    cache = filled(dtype)
    wanted = cache.array.copy()
    wanted[:, 5, :, :4] = wanted[:, 2, :, :4]
    cache.copy(2, 5, 4)
    assert (cache.array == wanted).all()


def test_the_rows_of_a_layer_are_contiguous() -> None:
    cache = filled()
    part = cache.part(3, 2, 4)
    assert part.flags.c_contiguous
    assert part.shape == (4, HEADS, CAPACITY, DIM)
    assert np.shares_memory(part, cache.array)


def test_memory_that_nobody_touched_costs_nothing() -> None:
    before = resident()
    huge = Reserved((1 << 20, 1 << 14), np.float32)  # 64 GB
    huge.array[::200_000, 0] = 1
    assert resident() - before < 1 << 20


def test_memory_that_is_given_back_is_free_and_its_neighbour_is_kept() -> None:
    cache = KvCache(2, 4, 8, 1024, 64, "float32")  # 2 MB a row and layer
    cache.array[:] = 1
    full = resident()
    cache.give_back(1)
    assert full - resident() > 0.95 * cache.array.nbytes * 3 / 4
    assert (cache.array[:, 0] == 1).all()
    cache.array[:, 1:] = 2
    assert (cache.array[:, 0] == 1).all()


def test_a_row_that_moves_takes_its_length_and_next_input_along() -> None:
    memory = LaneMemory(ROWS, filled())
    memory.start(4, 6)
    memory.feed([(4, 17)])
    memory.move(4, 1)
    assert (memory.ids[1, 0], memory.lengths[1], memory.positions[1, 0]) == (17, 6, 6)
    assert (memory.cache.array[:, 1, :, :6] == memory.cache.array[:, 4, :, :6]).all()


@pytest.mark.parametrize("cross_type", ["float32", "int8"])
def test_an_encoded_source_lies_by_head_with_its_last_position_and_scales(tmp_path: Path, cross_type: str) -> None:
    spec = read_spec(toys.write_encoder_decoder(tmp_path, cross_type=cross_type))
    cross, width = CrossCache(spec, units=3), spec.heads * spec.head_dim
    rng = np.random.default_rng(0)
    encoded = rng.integers(-127, 128, (spec.layers, 5, 2 * width)).astype(cross_type)
    scales = rng.random((spec.layers, 2 * width), np.float32) if cross_type == "int8" else None
    cross.put(1, Encoded(encoded, scales))
    cross.move(1, 0)
    inputs, outputs = cross.bound(2)
    keys, values = np.split(encoded[1], 2, axis=1)
    for unit in (0, 1):
        for head in range(spec.heads):
            columns = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
            assert (inputs["cross_k_1"][unit, head, :5] == keys[:, columns]).all()
            assert (inputs["cross_v_1"][unit, head, :5] == values[:, columns]).all()
        assert (inputs["cross_v_last_1"][unit, 0] == values[-1]).all()
        assert inputs["source_seqlens_k"][unit] == 4
        if scales is not None:
            assert (inputs["cross_k_scale_1"][unit] == scales[1, :width]).all()
            assert (inputs["cross_v_scale_1"][unit] == scales[1, width:]).all()
    assert inputs["cross_k_1"].dtype == cross_type
    assert np.shares_memory(inputs["cross_k_1"], outputs["cross_present_k_1"])
