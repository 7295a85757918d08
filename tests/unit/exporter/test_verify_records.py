"""What `hfx verify` reads from the manifest of an export: its own, and those of earlier versions."""

from __future__ import annotations

from typing import Any

import pytest

from hfx.exporter.verify import was_batch_invariant

WHOLE = {"texts": 4, "same": 1.0, "ties": 0.0, "alone": 4}


@pytest.mark.parametrize("member", ["batch_variants", "company"])
@pytest.mark.parametrize(("greedy", "beams", "invariant"), [(0, 0, True), (1, 0, False), (0, 2, False)])
def test_texts_that_depend_on_the_batch_are_read_by_both_field_names(
    member: str, greedy: int, beams: int, invariant: bool
) -> None:
    parity: dict[str, Any] = {"greedy": {**WHOLE, member: greedy}, "reserve": {"native": {"beams": {member: beams}}}}
    assert was_batch_invariant(parity) is invariant
