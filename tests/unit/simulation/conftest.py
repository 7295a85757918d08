"""Which seeds are simulated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.rigs.machine.tiers import chosen_seeds

SEEDS = 600


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> Sequence[int]:
    return chosen_seeds(request.config, SEEDS)
