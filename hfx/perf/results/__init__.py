"""The result file of hfx perf: its schema, its reading and writing, and what follows from its runs."""

from hfx.perf.results.distribution import cumulative, distribution, merged
from hfx.perf.results.files import check_writable, read_result, to_json, write_result
from hfx.perf.results.schema import (
    ClientSide,
    Cost,
    Distribution,
    Gpu,
    Load,
    Machine,
    Requests,
    Result,
    Run,
    ServerSide,
    Step,
    Subject,
    Tokens,
)
from hfx.perf.results.summary import Group, Spread, groups, ratios, spread

__all__ = [
    "ClientSide",
    "Cost",
    "Distribution",
    "Gpu",
    "Group",
    "Load",
    "Machine",
    "Requests",
    "Result",
    "Run",
    "ServerSide",
    "Spread",
    "Step",
    "Subject",
    "Tokens",
    "check_writable",
    "cumulative",
    "distribution",
    "groups",
    "merged",
    "ratios",
    "read_result",
    "spread",
    "to_json",
    "write_result",
]
