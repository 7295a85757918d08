"""Figures of others, by others: shown beside what is measured here, never part of a ratio.

Owns their sources. MLServer's were recorded apart from every run of ours; with which settings is not known.
"""

from __future__ import annotations

from hfx.perf.results import Published

_SUBJECT = "MLServer's HuggingFace runtime"
_SOURCE = "recorded earlier on this kind of machine, settings not known (docs/benchmarks-serving.md)"
_RATE, _BURST = "distilgpt2, 50 tokens, 50 requests a second for 3 s", "distilgpt2, 50 tokens, 512 requests at once"

MLSERVER_RATE = (
    Published(_SUBJECT, _RATE, "throughput", 26.3, "requests/s", _SOURCE),
    Published(_SUBJECT, _RATE, "p50", 3200.0, "ms", _SOURCE),
    Published(_SUBJECT, _RATE, "p99", 4700.0, "ms", _SOURCE),
)
MLSERVER_BURST = (Published(_SUBJECT, _BURST, "until the last answer", 21.4, "s", _SOURCE),)
