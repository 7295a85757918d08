"""hfx's own load generator: gRPC from an event loop in a process of its own.

`generate` puts a plan of requests to a served model and gives the figures of it. What is imported here is imported when
it is used: the generator's process, which lives in this package too, starts without what makes figures.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hfx.perf.builtin.generator import check, generate
    from hfx.perf.builtin.outcome import Generated, Progress

__all__ = ["Generated", "Progress", "check", "generate"]
_MODULES = {
    "Generated": "outcome",
    "Progress": "outcome",
    "check": "generator",
    "generate": "generator",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
