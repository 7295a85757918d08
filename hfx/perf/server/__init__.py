"""The server's side of a measurement: what it counted and used meanwhile."""

from hfx.perf.server.statistics import Statistics
from hfx.perf.server.watching import ServerWatch, located

__all__ = ["ServerWatch", "Statistics", "located"]
