"""Spans of a generator's requests, sent by opentelemetry-sdk to an OTLP collector, as children of Triton's spans.

The SDK's OTEL_* variables apply. Triton traces requests with a sampled `traceparent`. When such a request has ended,
the spans queue, prefill and decode are written for each of its texts, with the times that the engine recorded. Threads
of the SDK send the spans, and drop them if the collector is down or slow, so no request waits.
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
MOST_JOBS = 32  # texts with spans per request; a long document may have hundreds of texts
FLUSH_SECONDS = 2.0
LINE_SECONDS = 60.0  # between two lines about lost spans
EXPORT_SECONDS = 5.0  # timeout of an export to the collector


class _Complaints(logging.Handler):
    """Prints a line on stderr for an error of the SDK, at most once in LINE_SECONDS."""

    _due = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record without its traceback."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LINE_SECONDS
        reason = repr(record.exc_info[1]) if record.exc_info else ""
        with suppress(OSError):
            print(f"hfx: Spans are lost: {record.getMessage()} {reason}".rstrip(), file=sys.stderr, flush=True)


def _quieten() -> None:
    """Suppress the SDK's own output: its warnings would repeat what callers sent."""
    for name in ("opentelemetry", "urllib3"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_Complaints()], False
        logger.setLevel(logging.ERROR)


def _refuse_redirect(response: Any, **_: Any) -> None:
    """Raise TooManyRedirects for a redirect, which versions of the SDK follow for ever or take for a success."""
    from requests.exceptions import TooManyRedirects

    if 300 <= response.status_code < 400:
        raise TooManyRedirects(f"the collector redirects (status {response.status_code}); give its new address")


def open_provider(endpoint: str) -> Any:
    """Open the SDK's TracerProvider for a collector at `endpoint` (http://127.0.0.1:4318). Raises ImportError."""
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    _quieten()
    named = Resource({SERVICE_NAME: SERVICE}).merge(OTELResourceDetector().detect())
    session = requests.Session()
    session.hooks["response"].append(_refuse_redirect)
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS, session=session)
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def flush(provider: Any) -> None:
    """Send the waiting spans, for at most FLUSH_SECONDS. The provider's own flush has no time limit."""
    sending = threading.Thread(target=provider.force_flush, daemon=True)
    sending.start()
    sending.join(FLUSH_SECONDS)


def trace_of(request: Any) -> str:
    """Return the trace context of a Triton request as a JSON object; empty if the request is not traced."""
    return request.trace().get_context() or "" if os.environ.get(ENDPOINT_VARIABLE) else ""


class SpanWriter:
    """Writes spans if ENDPOINT_VARIABLE names a collector. `log` is called with a line if packages are missing."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._provider: Any = None
        if endpoint := os.environ.get(ENDPOINT_VARIABLE):
            try:
                self._provider = open_provider(endpoint)
            except ImportError as error:
                log(f"No spans of this generator's requests: {error}. Run: pip install 'hfx[traces]'")

    def write(self, trace: str, jobs: Iterable[Any]) -> None:
        """Write the spans of an ended request as children of `trace` (see trace_of). `jobs` are the engine's."""
        if self._provider is None:
            return
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent, shift = TraceContextTextMapPropagator().extract(json.loads(trace)), time.time() - time.monotonic()
        tracer = self._provider.get_tracer("hfx.generator")
        for job in islice(jobs, MOST_JOBS):
            times = job.times
            ended = times.ended or time.monotonic()
            for name, begin, end, counts in (
                ("queue", times.submitted, times.began, {}),
                ("prefill", times.began, times.first_choice, {"gen_ai.usage.input_tokens": len(job.prompt)}),
                ("decode", times.first_choice, ended, {"gen_ai.usage.output_tokens": job.tokens}),
            ):
                if begin:
                    first, last = (int(1e9 * (shift + seconds)) for seconds in (begin, end or ended))
                    span = tracer.start_span(name, parent, attributes=counts, start_time=first)
                    if name == "decode":
                        span.add_event("first token", timestamp=first)
                    span.end(last)

    def close(self) -> None:
        """Send the waiting spans (see flush)."""
        if self._provider is not None:
            flush(self._provider)
