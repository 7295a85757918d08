"""Spans sent to an OTLP collector by opentelemetry-sdk, whose OTEL_* variables apply: a generator's below Triton's own.

Triton traces the requests that come with a sampled `traceparent`. Each of their texts has the spans queue, prefill and
decode, written when the request has ended, from the times that the engine has noted. Threads of the SDK send spans, and
drop them where the collector is gone or slow: no request waits for it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
SERVICE = "hfx"  # unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES names another
MOST_JOBS = 32  # of a request that have spans: a long document may be hundreds
FLUSH_SECONDS = 2.0
LINE_SECONDS = 60.0  # between two lines about spans that are lost
EXPORT_SECONDS = 5.0  # that a collector may take for the spans of a moment


class _Complaints(logging.Handler):
    """A line on stderr for an error of the SDK, one in LINE_SECONDS at most."""

    _due = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Without the traceback, which says no more."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LINE_SECONDS
        reason = repr(record.exc_info[1]) if record.exc_info else ""
        with suppress(OSError):
            print(f"hfx: Spans are lost: {record.getMessage()} {reason}".rstrip(), file=sys.stderr, flush=True)


def _quieten() -> None:
    """Let the SDK print no more than that: its warnings repeat what callers send, while their request is answered."""
    for name in ("opentelemetry", "urllib3"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_Complaints()], False
        logger.setLevel(logging.ERROR)


def open_provider(endpoint: str) -> Any:
    """The SDK's TracerProvider for a collector at `endpoint`, such as http://127.0.0.1:4318. Raises ImportError."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    _quieten()
    named = Resource({SERVICE_NAME: SERVICE}).merge(OTELResourceDetector().detect())
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def flush(provider: Any) -> None:
    """Send the spans that wait, within FLUSH_SECONDS; the provider itself holds no time limit."""
    sending = threading.Thread(target=provider.force_flush, daemon=True)
    sending.start()
    sending.join(FLUSH_SECONDS)


def trace_of(request: Any) -> str:
    """The trace context of a request of Triton's as a JSON object; empty where it is not traced."""
    return request.trace().get_context() or "" if os.environ.get(ENDPOINT_VARIABLE) else ""


class SpanWriter:
    """Writes spans where ENDPOINT_VARIABLE names a collector; `log` gets a line if the packages are missing."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._provider: Any = None
        if endpoint := os.environ.get(ENDPOINT_VARIABLE):
            try:
                self._provider = open_provider(endpoint)
            except ImportError as error:
                log(f"No spans of this generator's requests: {error}. Run: pip install 'hfx[traces]'")

    def write(self, trace: str, jobs: Iterable[Any]) -> None:
        """The spans of a request that has ended, below those of `trace` (see trace_of); `jobs` are the engine's."""
        if self._provider is None:
            return
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent, shift = TraceContextTextMapPropagator().extract(json.loads(trace)), time.time() - time.monotonic()
        tracer = self._provider.get_tracer("hfx.generator")
        for job in islice(jobs, MOST_JOBS):
            ended = job.ended or time.monotonic()
            for name, begin, end, counts in (
                ("queue", job.submitted, job.began, {}),
                ("prefill", job.began, job.first_choice, {"gen_ai.usage.input_tokens": len(job.prompt)}),
                ("decode", job.first_choice, ended, {"gen_ai.usage.output_tokens": job.tokens}),
            ):
                if begin:
                    first, last = (int(1e9 * (shift + seconds)) for seconds in (begin, end or ended))
                    span = tracer.start_span(name, parent, attributes=counts, start_time=first)
                    if name == "decode":
                        span.add_event("first token", timestamp=first)
                    span.end(last)

    def close(self) -> None:
        """Send what waits (see flush)."""
        if self._provider is not None:
            flush(self._provider)
