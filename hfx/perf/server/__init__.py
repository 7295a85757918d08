"""The server's side of a measurement: what it counted and used meanwhile. Nothing here puts load on it."""

from hfx.perf.server.places import Place, place
from hfx.perf.server.statistics import Statistics
from hfx.perf.server.watching import ServerWatch, Sources

__all__ = ["Place", "ServerWatch", "Sources", "Statistics", "place"]
