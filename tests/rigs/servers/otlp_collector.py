"""An OpenTelemetry collector that keeps received spans: protobuf from Python's SDK, JSON from Triton."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Span:
    """Ids are hexadecimal digits; `parent` is empty for the first span of a trace."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    events: tuple[str, ...]


@dataclass
class Collector:
    """The received spans; while `answers` is not set, no request is answered."""

    url: str = ""
    requests: int = 0
    spans: list[Span] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)


@contextmanager
def collector(hangs: bool = False, status: int = 200) -> Iterator[Collector]:
    """Yield a collector at a free port of 127.0.0.1 that answers with `status`; a redirect leads to itself.

    A collector that `hangs` takes requests and does not answer.
    """
    found = Collector()
    if not hangs:
        found.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.answers.wait()
            found.requests += 1
            assert self.path == "/v1/traces"
            found.spans += _spans(body, self.headers["content-type"])
            self.send_response(status)
            self.send_header("location", self.path)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield found
        finally:
            found.answers.set()
            server.shutdown()


def _spans(body: bytes, media_type: str) -> Iterator[Span]:
    if "json" in media_type:
        content = json.loads(body)
    else:
        from google.protobuf.json_format import MessageToDict
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        message = ExportTraceServiceRequest()
        message.ParseFromString(body)
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    yield Span(
                        _service(MessageToDict(resource)),
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        _attributes(MessageToDict(span)),
                        tuple(event.name for event in span.events),
                    )
        return
    for resource in content["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                names = tuple(event["name"] for event in span.get("events", ()))
                ids = span["traceId"], span["spanId"], span.get("parentSpanId") or ""
                yield Span(_service(resource), span["name"], *ids, _attributes(span), names)


def _service(resource: dict[str, Any]) -> str:
    return str(_attributes(resource["resource"]).get("service.name", ""))


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in holder.get("attributes", ())}
