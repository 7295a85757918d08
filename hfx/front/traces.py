"""A span for each sampled request, sent to an OTLP collector by opentelemetry-sdk, whose OTEL_* variables apply.

Triton traces what comes with a `traceparent`: the front sends one with sampled requests alone. Spans wait in a queue of
the SDK's own thread, which drops them where the collector is gone or slow: no request waits for it.
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

    OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say which requests without a caller's trace are sampled; without
    them all are.
    """

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = open_provider(endpoint)
        self._tracer = self._provider.get_tracer("hfx.front")
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    def begin(self, headers: Mapping[bytes, bytes]) -> Trace:
        """The span of a request with `headers`, a child of the caller's where they name one."""
        carrier = {name.decode(): headers[name].decode("latin-1") for name in NAMES if name in headers}
        span = self._tracer.start_span("HTTP", self._propagator.extract(carrier), self._kind)
        return Trace(span, self._sent(span))

    def flush(self) -> None:
        """Send what waits, for a moment; called once no request is in progress."""
        flush(self._provider)

    def _sent(self, span: Span) -> Sequence[Header]:
        from opentelemetry.trace import set_span_in_context

        if not span.is_recording():
            return ()
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return [(name.encode(), value.encode()) for name, value in carrier.items()]


class Trace:
    """The span of a request, and the `headers` by which Triton goes on with its trace: none where it is not sampled."""

    def __init__(self, span: Span, headers: Sequence[Header]) -> None:
        self.headers = headers
        self._span = span

    def end(self, scope: Mapping[str, Any], response: Response) -> None:
        """Say what was answered; the span's end is now."""
        from opentelemetry.trace import StatusCode

        span = self._span
        if not span.is_recording():
            return
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
    """Without a collector: a caller's trace is for Triton to go on with."""

    def begin(self, headers: Mapping[bytes, bytes]) -> Passed:
        """Keep the trace that a request's headers name, for Triton."""
        return (
            NOTHING if NAMES.isdisjoint(headers) else Passed([(name, headers[name]) for name in NAMES & headers.keys()])
        )

    def flush(self) -> None:
        """Do nothing: no span waits to be sent."""


class Passed:
    """The `headers` of a caller's own trace."""

    def __init__(self, headers: Sequence[Header]) -> None:
        self.headers = headers

    def end(self, scope: Mapping[str, Any], response: Response) -> None:
        """Nothing is said of it."""


NOTHING = Passed(())
