"""Data that may lie beside the checkout, for tests that are skipped without them."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("HFX_BENCH_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
