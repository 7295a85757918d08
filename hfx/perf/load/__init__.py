"""What is sent to a server, when, and what its answers are held to: requests, plans and service levels."""

from hfx.perf.load.parsing import parse_seconds
from hfx.perf.load.plans import Closed, Limits, Open, Plan
from hfx.perf.load.requests import Request, RequestSet, from_file, parse_columns, text_tensors
from hfx.perf.load.slo import Slo
from hfx.perf.load.synthetic import parse_lengths, synthetic

__all__ = [
    "Closed",
    "Limits",
    "Open",
    "Plan",
    "Request",
    "RequestSet",
    "Slo",
    "from_file",
    "parse_columns",
    "parse_lengths",
    "parse_seconds",
    "synthetic",
    "text_tensors",
]
