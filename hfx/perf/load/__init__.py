"""What is sent to a server, when, and what its answers are held to: requests, plans and service levels."""

from hfx.perf.load.parsing import (
    parse_concurrency,
    parse_open,
    parse_rates,
    parse_seconds,
    parse_trace,
    parse_warmup,
)
from hfx.perf.load.plans import Arrivals, Closed, Limits, Open, Plan
from hfx.perf.load.requests import Request, RequestSet, Scalar, from_file, parse_columns, text_tensors
from hfx.perf.load.slo import Slo
from hfx.perf.load.synthetic import Lengths, parse_lengths, synthetic

__all__ = [
    "Arrivals",
    "Closed",
    "Lengths",
    "Limits",
    "Open",
    "Plan",
    "Request",
    "RequestSet",
    "Scalar",
    "Slo",
    "from_file",
    "parse_columns",
    "parse_concurrency",
    "parse_lengths",
    "parse_open",
    "parse_rates",
    "parse_seconds",
    "parse_trace",
    "parse_warmup",
    "synthetic",
    "text_tensors",
]
