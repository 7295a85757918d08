"""What only `make test-full` runs, and what only runs where real texts and checkpoints are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hfx.exporter.transformers_versions import installed

DATA = Path(os.environ.get("HFX_BENCH_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
needs_data = pytest.mark.skipif(
    not DATA.is_dir(),
    reason="no real data: HFX_BENCH_DATA=DIR with DIR/billsum/billsum-0.csv, DIR/models/g2p-bart-us, …/g2p-t5-us",
)


def since_transformers(*version: int) -> pytest.MarkDecorator:
    """Skip a test of what transformers does since `version` (major, minor), and hfx does with every version."""
    name = ".".join(map(str, version))
    return pytest.mark.skipif(installed() < version, reason=f"transformers before {name} does otherwise")


def full(*values: Any) -> Any:
    """Mark parameters that `make test` leaves out, because the remaining ones cover the common case."""
    return pytest.param(*values, marks=pytest.mark.full)


def few(names: Iterable[str], *common: str) -> list[Any]:
    """Mark `names` but those in `common`, which `make test` leaves out; the common ones are one of each kind."""
    names = list(names)
    assert set(common) <= set(names)
    return [name if name in common else full(name) for name in names]


def chosen_seeds(config: pytest.Config, count: int) -> Sequence[int]:
    """Return the seeds that --seed or --seeds choose, or else the first `count` ones."""
    seed = config.getoption("--seed")
    return range(config.getoption("--seeds") or count) if seed is None else (seed,)


def thinned(names: Iterable[str]) -> list[Any]:
    """Mark every second of `names`, which `make test` leaves out; each varies one field of a common configuration."""
    return [full(name) if at % 2 else name for at, name in enumerate(names)]
