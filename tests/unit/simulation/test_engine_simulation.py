"""The engine under thousands of seeds: bursts, streams and documents, cancels, deadlines and faults; what must hold.

`pytest tests/unit/simulation/test_engine_simulation.py --seed N` repeats a seed. More of them: `--seeds N`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from tests.unit.simulation.engine_world import World

SHARE = 5  # of the seeds
MANY = range(1000, 4000)


def run(seeds: Iterable[int]) -> None:
    """Simulate and check `seeds`."""
    for seed in seeds:
        try:
            World(seed).run()
        except BaseException as error:
            error.add_note(f"pytest {__file__} --seed {seed}")
            raise


def test_seeds(seeds: Sequence[int]) -> None:
    run(seeds[: 1 + len(seeds) // SHARE])


@pytest.mark.full
def test_many_seeds() -> None:
    run(MANY)
