"""What hfx itself counts, in Prometheus's text format, behind Triton's metrics."""

from __future__ import annotations

from hfx.front.settings import State

SAMPLES = (
    ("hfx_restarts_total", "counter", "Models, HTTP fronts and servers that were started again, attempts included"),
    ("hfx_start_time_seconds", "gauge", "When `hfx serve` was started, in seconds since 1970"),
)


def own_metrics(state: State, started: float) -> bytes:
    """The lines of a `state` of a server that began at the time `started`."""
    values = (state.restarts, started)
    lines = (
        f"# HELP {name} {description}\n# TYPE {name} {kind}\n{name} {value}\n"
        for (name, kind, description), value in zip(SAMPLES, values, strict=True)
    )
    return "".join(lines).encode()
