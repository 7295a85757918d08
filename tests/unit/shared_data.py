"""Real texts and checkpoints, which are not part of the repository: tests of them are skipped where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("HFX_BENCH_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
needs_data = pytest.mark.skipif(
    not DATA.is_dir(),
    reason="no real data: HFX_BENCH_DATA=DIR with DIR/billsum/billsum-0.csv, DIR/models/g2p-bart-us, …/g2p-t5-us",
)
