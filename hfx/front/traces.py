"""Sends a span for each sampled request to an OTLP collector, with opentelemetry-sdk, whose OTEL_* variables apply.

Triton traces requests that have a `traceparent`, so the front sends one only with sampled requests. Spans wait in a
queue of the SDK's own thread, which drops them if the collector is gone or slow. No request waits for the collector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hfx.front.refusals import Header
from hfx.python_backends.serving.traces import flush, open_provider

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from hfx.front.response import Response

PARENT, STATE = b"traceparent", b"tracestate"
NAMES = {PARENT, STATE}


class Tracer:
    """Makes spans, and sends them to the collector at `endpoint`, such as http://127.0.0.1:4318.

    OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG decide which requests without a caller's trace are sampled. By
    default, all are sampled.
    """

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = open_provider(endpoint)
        self._tracer = self._provider.get_tracer("hfx.front")
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    def begin(self, headers: Mapping[bytes, bytes]) -> Trace:
        """Begin the span of a request with `headers`, as a child of the caller's span if they name one."""
        from opentelemetry.trace import set_span_in_context

        carrier = {name.decode(): headers[name].decode("latin-1") for name in NAMES if name in headers}
        span = self._tracer.start_span("HTTP", self._propagator.extract(carrier), self._kind)
        sent: dict[str, str] = {}
        if span.is_recording():
            self._propagator.inject(sent, set_span_in_context(span))
        return Trace([(name.encode(), value.encode()) for name, value in sent.items()], span)

    def flush(self) -> None:
        """Send the waiting spans, within a short time. Call this when no request is in progress."""
        flush(self._provider)


class Trace:
    """The `headers` with which Triton continues a request's trace, and the span of the request in the front.

    There are no headers if the trace is not sampled, and no `span` if the front sends none.
    """

    def __init__(self, headers: Sequence[Header] = (), span: Span | None = None) -> None:
        self.headers = headers
        self._span = span

    def end(self, scope: Mapping[str, Any], response: Response) -> None:
        """Add the facts about the answer to the span, and end it."""
        span = self._span
        if span is None or not span.is_recording():
            return
        from opentelemetry.trace import StatusCode  # is not installed where the front sends no spans

        route = response.route or "other"
        span.update_name(f"{scope['method']} {route}")
        values = {
            "http.request.method": scope["method"],
            "http.route": route,
            "http.response.status_code": response.logged_status,
            "http.request.body.size": response.received,
            "http.response.body.size": response.bytes,
            "gen_ai.request.model": response.model,
            "gen_ai.usage.input_tokens": response.input_tokens or None,
            "gen_ai.usage.output_tokens": response.output_tokens or None,
            "hfx.key": response.caller.label,
            "hfx.request_id": response.request_id.decode(),
            "hfx.first_byte_seconds": response.first_byte,
            "error.type": response.refusal,
        }
        span.set_attributes({name: value for name, value in values.items() if value not in ("", None)})
        if response.broken or response.status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()


class Untraced:
    """The replacement for Tracer if there is no collector. It passes a caller's trace on to Triton."""

    def begin(self, headers: Mapping[bytes, bytes]) -> Trace:
        """Return the trace headers of a request, for Triton."""
        return Trace([(name, headers[name]) for name in NAMES & headers.keys()])

    def flush(self) -> None:
        """Do nothing: no span waits to be sent."""
