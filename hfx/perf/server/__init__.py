"""The server's side of a measurement: what it counted and used meanwhile."""

from hfx.perf.server.processes import Place, place
from hfx.perf.server.statistics import Statistics
from hfx.perf.server.watching import ServerWatch, Sources

__all__ = ["Place", "ServerWatch", "Sources", "Statistics", "place"]
