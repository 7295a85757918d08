"""Loads: which requests are sent, when (plans), and which limits their answers must meet (SLOs)."""

from hfx.perf.load.plans import Closed, LoadLimits, Open, Plan, Slo, parse_seconds
from hfx.perf.load.requests import Request, RequestSet, from_file, parse_columns, parse_lengths, synthetic, text_tensors

__all__ = [
    "Closed", "LoadLimits", "Open", "Plan", "Request", "RequestSet", "Slo", "from_file", "parse_columns",
    "parse_lengths", "parse_seconds", "synthetic", "text_tensors",
]  # fmt: skip
