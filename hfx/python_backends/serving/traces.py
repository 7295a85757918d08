"""A generator's spans below Triton's own: queue, prefill and decode of each text, sent to an OTLP collector.

Triton traces the requests that come with a sampled `traceparent`. Spans are written when a request has ended, from the
times that the engine has noted, by opentelemetry-sdk, whose OTEL_* variables apply. Its own thread sends them: no
request waits for a collector.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
SERVICE = "hfx"  # unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES names another
MOST_JOBS = 32  # of a request that have spans: a long document may be hundreds
FLUSH_SECONDS = 2.0
EXPORT_SECONDS = 5  # that a collector may take for the spans of a moment


def trace_of(request: Any) -> str:
    """The trace context of a request of Triton's as a JSON object; empty where it is not traced."""
    return request.trace().get_context() or "" if os.environ.get(ENDPOINT_VARIABLE) else ""


class SpanWriter:
    """Writes spans where ENDPOINT_VARIABLE names a collector; `log` gets a line if the packages are missing."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._tracer: Any = None
        if os.environ.get(ENDPOINT_VARIABLE):
            try:
                self._open()
            except ImportError as error:
                log(f"No spans of this generator's requests: {error}. Run: pip install 'hfx[traces]'")

    def write(self, trace: str, jobs: Iterable[Any]) -> None:
        """The spans of a request that has ended, below those of `trace` (see trace_of); `jobs` are the engine's."""
        if self._tracer is None:
            return
        parent, shift = self._extract(json.loads(trace)), time.time() - time.monotonic()
        for job in islice(jobs, MOST_JOBS):
            ended = job.ended or time.monotonic()
            prompt, tokens = {"gen_ai.usage.input_tokens": len(job.prompt)}, {"gen_ai.usage.output_tokens": job.tokens}
            for name, begin, end, counts in (
                ("queue", job.submitted, job.began, {}),
                ("prefill", job.began, job.first_choice, prompt),
                ("decode", job.first_choice, ended, tokens),
            ):
                if begin:
                    first, last = (int(1e9 * (shift + seconds)) for seconds in (begin, end or ended))
                    span = self._tracer.start_span(name, parent, attributes=counts, start_time=first)
                    if name == "decode":
                        span.add_event("first token", timestamp=first)
                    span.end(last)

    def flush(self) -> None:
        """Send what waits, within FLUSH_SECONDS."""
        if self._tracer is not None:
            sending = threading.Thread(target=self._provider.force_flush, daemon=True)  # its own time limit is not held
            sending.start()
            sending.join(FLUSH_SECONDS)

    def _open(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = Resource({SERVICE_NAME: SERVICE}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=EXPORT_SECONDS)))
        self._extract = TraceContextTextMapPropagator().extract
        self._tracer = self._provider.get_tracer("hfx.generator")
