"""The result file of hfx perf: its schema, its reading and writing, and what follows from its runs."""

from hfx.perf.results.distribution import cumulative
from hfx.perf.results.files import check_writable, read_result, to_json, write_result
from hfx.perf.results.rounds import Group, Spread, groups
from hfx.perf.results.schema import Distribution, Gpu, Load, Machine, Requests, Result, Run, Step, Subject

__all__ = [
    "Distribution",
    "Gpu",
    "Group",
    "Load",
    "Machine",
    "Requests",
    "Result",
    "Run",
    "Spread",
    "Step",
    "Subject",
    "check_writable",
    "cumulative",
    "groups",
    "read_result",
    "to_json",
    "write_result",
]
