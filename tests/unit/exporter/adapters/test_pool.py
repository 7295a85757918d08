"""A slot of the pool has an adapter's numbers at the places of its layout, in float32 or in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.errors import CheckpointUnsupported
from hfx.exporter.adapters.folder import LowRank
from hfx.exporter.adapters.pool import Layout

INPUTS, OUTPUTS, ROOM, RANK, LABELS = 7, 5, 4, 3, 2
HEADER = 16
SIZES = {
    False: (HEADER + ROOM * (INPUTS + OUTPUTS), 3 * (INPUTS + 1)),
    True: (HEADER + ROOM + 7 + 5, 3 + 3 + 6),  # 28 and 20 bytes; 21 bytes and 3 of padding
}


def random(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def layout(int8: bool) -> Layout:
    made = Layout(int8)
    made.add("product", INPUTS, OUTPUTS, ROOM)
    made.add("head", INPUTS, 3)
    return made


def rows(slot: NDArray[Any], place: int, count: int, width: int) -> NDArray[np.int8]:
    """Return int8 rows that begin at a float of the slot."""
    return slot[place:].view(np.int8)[: count * width].reshape(count, width)


A, B, WEIGHT, BIAS = random(RANK, INPUTS), random(OUTPUTS, RANK), random(LABELS, INPUTS), random(LABELS)
B[:, 1] = 0
PAIR = LowRank(A, B)


@pytest.mark.parametrize("int8", [False, True])
def test_places_follow_each_other_and_are_read_back(int8: bool, tmp_path: Path) -> None:
    made = layout(int8)
    assert tuple(place.size for place in made.places.values()) == SIZES[int8]
    assert [place.offset for place in made.places.values()] == [0, SIZES[int8][0]]
    assert made.stride == sum(SIZES[int8]) == made.slot({}, {"head": (WEIGHT, BIAS)}).size
    made.write(tmp_path / "adapters.json")
    assert Layout.read(tmp_path / "adapters.json") == made


def test_a_slot_in_float32_has_the_matrices_as_they_are() -> None:
    slot = layout(False).slot({"product": PAIR}, {"head": (WEIGHT, BIAS)})
    a, b, head = HEADER, HEADER + ROOM * INPUTS, SIZES[False][0]
    assert slot[0] == RANK
    np.testing.assert_array_equal(slot[a : a + RANK * INPUTS].reshape(RANK, INPUTS), A)
    np.testing.assert_array_equal(slot[b : b + RANK * OUTPUTS].reshape(RANK, OUTPUTS), B.T)
    np.testing.assert_array_equal(slot[head : head + LABELS * INPUTS].reshape(LABELS, INPUTS), WEIGHT)
    np.testing.assert_array_equal(slot[head + 3 * INPUTS :], [*BIAS, 0])
    assert np.count_nonzero(slot) == 1 + A.size + np.count_nonzero(B) + WEIGHT.size + BIAS.size


def test_a_slot_in_int8_has_rows_with_scales_and_zeros_behind_them() -> None:
    slot = layout(True).slot({"product": PAIR}, {"head": (WEIGHT, BIAS)})
    scales, a, b = slot[HEADER : HEADER + ROOM], HEADER + ROOM, HEADER + ROOM + ROOM * INPUTS // 4
    assert slot[0] == RANK and not slot[1:HEADER].any() and not scales[RANK:].any()
    a_rows, b_rows = rows(slot, a, ROOM, INPUTS), rows(slot, b, ROOM, OUTPUTS)
    assert (np.abs(a_rows[:RANK]).max(1) == 127).all() and not a_rows[RANK:].any() and not b_rows[RANK:].any()
    found = (b_rows[:RANK] * scales[:RANK, None].astype(float)).T @ a_rows[:RANK]
    peaks = np.abs(A).max(1) * np.abs(B).max(0)
    assert np.abs(found - B @ A).max() <= peaks.sum() / 127

    head = SIZES[True][0]
    weights = rows(slot, head + 6, 3, INPUTS)
    scale = np.abs(WEIGHT).max(1) / np.float32(127)
    np.testing.assert_array_equal(weights[:LABELS], np.rint(WEIGHT / scale[:, None]))
    np.testing.assert_array_equal(slot[head : head + 6], [*scale, 0, *BIAS, 0])
    assert not weights[LABELS:].any() and not slot[head + 6 :].view(np.int8)[3 * INPUTS :].any()


@pytest.mark.parametrize("int8", [False, True])
def test_an_adapter_that_does_not_fit_is_refused(int8: bool) -> None:
    head = {"head": (WEIGHT, BIAS)}
    for products, heads, reason in (
        ({"product": LowRank(random(ROOM + 1, INPUTS), random(OUTPUTS, ROOM + 1))}, head, "has room for 4"),
        ({"product": LowRank(random(RANK, INPUTS + 1), B)}, head, "for 8 inputs"),
        ({"other": PAIR}, head, "leave as it is"),
        ({}, {"head": (random(4, INPUTS), random(4))}, "room for 3"),
    ):
        with pytest.raises(CheckpointUnsupported) as refused:
            layout(int8).slot(products, heads)
        assert reason in f"{refused.value.message}"
