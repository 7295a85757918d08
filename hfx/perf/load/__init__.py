"""What is sent to a server, when, and what its answers are held to: plans, requests and service levels.

Nothing here sends anything, and nothing knows which tool will.
"""

from hfx.perf.load.cells import Scalar
from hfx.perf.load.columns import parse_columns, text_tensors
from hfx.perf.load.durations import parse_seconds, parse_warmup
from hfx.perf.load.lengths import Lengths, parse_lengths
from hfx.perf.load.limits import Limits
from hfx.perf.load.parsing import parse_concurrency, parse_open, parse_rates, parse_trace
from hfx.perf.load.plans import Arrivals, Closed, Open, Plan
from hfx.perf.load.requests import Request, RequestSet, from_file, synthetic
from hfx.perf.load.slo import Bound, Slo, Timed

__all__ = [
    "Arrivals",
    "Bound",
    "Closed",
    "Lengths",
    "Limits",
    "Open",
    "Plan",
    "Request",
    "RequestSet",
    "Scalar",
    "Slo",
    "Timed",
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
