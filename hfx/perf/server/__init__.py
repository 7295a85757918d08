"""The server's side of a measurement: its counters and its use of resources."""

from hfx.perf.server.statistics import Statistics
from hfx.perf.server.watching import ServerWatch, located

__all__ = ["ServerWatch", "Statistics", "located"]
