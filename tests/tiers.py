"""Which parameters of a test only `make test-full` runs."""

from __future__ import annotations

from typing import Any

import pytest


def full(*values: Any) -> Any:
    """Parameters that `make test` leaves out, because those that stay cover the common case."""
    return pytest.param(*values, marks=pytest.mark.full)
