"""Which seeds are simulated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

SEEDS = 600


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="simulate this seed alone")
    parser.addoption("--seeds", type=int, default=SEEDS, help="simulate so many seeds")


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> Sequence[int]:
    seed = request.config.getoption("--seed", None)
    return range(request.config.getoption("--seeds", SEEDS)) if seed is None else (seed,)
