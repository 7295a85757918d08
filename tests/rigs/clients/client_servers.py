"""Servers in this process for tests of the client: they speak Triton's gRPC and HTTP, and fail on command.

The text of a request is a command to the model `writer`: `write N` gives N pieces, `stall N` gives N pieces and then
nothing, `sleep S` answers late, `fail CODE TEXT` answers with an error, `sleep S fail CODE TEXT` does so late. Tests
can read what callers sent and which requests they abandoned.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor, triton_to_np_dtype

from hfx.client import AsyncClient
from tests.rigs.machine.waiting import wait_until

INPUTS = {"text_input": "BYTES", "stream": "BOOL", "timeout_ms": "INT32", "max_tokens": "INT32", "seed": "UINT64",
          "stop_words": "BYTES", "early_stopping": "BYTES"}  # fmt: skip
OUTPUTS = {"text_output": "BYTES", "finish_reason": "BYTES", "input_tokens": "INT32", "output_tokens": "INT32",
           "truncated_tokens": "INT32"}  # fmt: skip
MODELS = ("writer", "writer_stream")
STALL_SECONDS = 20.0
Result = TypeVar("Result")
HTTP_CODES = {"INVALID_ARGUMENT": 400, "UNAVAILABLE": 503, "NOT_FOUND": 404, "INTERNAL": 500, "UNAUTHENTICATED": 401}
BUSY = ("UNAVAILABLE", "Exceeds maximum queue size")


class Refused(Exception):
    """A command to fail."""


@dataclass
class Script:
    """The server's behaviour, and a record of its requests."""

    task: str = "summarization"
    model_sha256: str = ""
    hides: bool = False  # its configuration
    busy: int = 0  # so many of the next requests are refused
    truncated: int = 0
    texts: list[str] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    asked: int = 0  # how often for metadata
    left: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of the model's configuration."""
        return {"task": self.task, "model_sha256": self.model_sha256}

    def pieces(self, values: dict[str, Any], headers: dict[str, str], request_id: str) -> Iterator[dict[str, Any]]:
        """Yield the answers to a request. Raises Refused."""
        text = values["text_input"]
        for seen, value in ((self.texts, text), (self.values, values), (self.headers, headers), (self.ids, request_id)):
            seen.append(value)
        with self.lock:
            self.busy -= 1
            if self.busy >= 0:
                raise Refused(*BUSY)
        order, _, rest = text.partition(" ")
        if order == "sleep":
            seconds, _, then = rest.partition(" ")
            time.sleep(float(seconds))
            order, _, rest = then.partition(" ")
        if order == "fail":
            raise Refused(*rest.split(" ", 1))
        count = int(rest) if order in ("write", "stall") else 1
        for number in range(count):
            ends = order != "stall" and number == count - 1
            yield self.piece(f"a{number} ", "length" if ends else "", number + 1)
        if order == "stall":
            yield {}

    def piece(self, text: str, reason: str, count: int) -> dict[str, Any]:
        figures = {"input_tokens": 3, "output_tokens": count, "truncated_tokens": self.truncated}
        return {"text_output": text, "finish_reason": reason, **figures}

    def whole(self, values: dict[str, Any], headers: dict[str, str], request_id: str) -> dict[str, Any]:
        found = [piece for piece in self.pieces(values, headers, request_id) if piece]
        return {**found[-1], "text_output": "".join(piece["text_output"] for piece in found)}

    def wait_asked(self, count: int) -> None:
        """Wait for `count` requests."""
        wait_until(lambda: len(self.texts) >= count, f"{count} requests", 20)

    def when_asked(self, count: int, act: Callable[[], object]) -> threading.Thread:
        """Call `act` in a thread, soon after `count` requests have arrived."""

        def wait() -> None:
            self.wait_asked(count)
            time.sleep(0.1)
            act()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def wait_left(self) -> bool:
        """Return whether a caller has abandoned its request before its end, within some seconds."""
        return self.left.acquire(timeout=10)


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The gRPC service."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ServerReadyResponse(ready=True)

    def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(name=name) for name in MODELS])

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.script.asked += 1
        if request.name not in MODELS:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        return pb.ModelMetadataResponse(name=request.name, inputs=_metadata(INPUTS), outputs=_metadata(OUTPUTS))

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.script.hides:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no configurations here")
        response = pb.ModelConfigResponse()
        for name, value in self.script.parameters.items():
            response.config.parameters[name].string_value = value
        return response

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        done = threading.Event()
        context.add_callback(lambda: done.is_set() or self.script.left.release())
        try:
            answer = self.script.whole(*_inputs(request, context))
        except Refused as refusal:
            done.set()
            context.abort(getattr(grpc.StatusCode, refusal.args[0]), refusal.args[1])
        done.set()
        return _response(answer)

    def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: N802
        done, gone = threading.Event(), threading.Event()
        context.add_callback(lambda: (gone.set(), done.is_set() or self.script.left.release()))
        try:
            for piece in self.script.pieces(*_inputs(next(requests), context)):
                if not piece:
                    gone.wait(STALL_SECONDS)
                    return
                yield pb.ModelStreamInferResponse(infer_response=_response(piece))
        except Refused as refusal:
            yield pb.ModelStreamInferResponse(error_message=refusal.args[1])
        done.set()


class Handler(BaseHTTPRequestHandler):
    """The HTTP handler."""

    script: Script
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        words = self.path.split("/")
        if self.path.startswith("/v2/health"):
            return self.reply(200, {})
        if self.path == "/v2/models/stats":
            return self.reply(200, {"model_stats": [{"name": name} for name in MODELS]})
        if words[3] not in MODELS:
            return self.reply(400, {"error": f"Request for unknown model: '{words[3]}' is not found"})
        if words[-1] == "config":
            return self.reply(
                200, {"parameters": {name: {"string_value": value} for name, value in self.script.parameters.items()}}
            )
        self.script.asked += 1
        return self.reply(200, {"name": words[3], "inputs": _metadata(INPUTS), "outputs": _metadata(OUTPUTS)})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            if self.path.endswith("/infer"):
                answer = self.script.whole(*_binary_inputs(body, headers))
                outputs = [{"name": n, "datatype": OUTPUTS[n], "shape": [1, 1], "data": [v]} for n, v in answer.items()]
                return self.reply(200, {"outputs": outputs})
            fields = json.loads(body)
            self.events(self.script.pieces(fields, headers, fields.pop("id")))
        except Refused as refusal:
            self.reply(HTTP_CODES[refusal.args[0]], {"error": refusal.args[1]})

    def events(self, pieces: Iterator[dict[str, Any]]) -> None:
        first = next(pieces)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for piece in (first, *pieces) if first else (first,):
                self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode() if piece else b"")
                if not piece:
                    self.stall()
        except OSError:
            self.script.left.release()

    def stall(self) -> None:
        self.connection.settimeout(STALL_SECONDS)
        if not self.connection.recv(1):
            raise ConnectionResetError

    def reply(self, status: int, fields: Any) -> None:
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """An HTTP server that accepts many connections at once."""

    daemon_threads = True
    request_queue_size = 256


@contextmanager
def grpc_server(script: Script, port: int = 0, credentials: Any = None) -> Iterator[str]:
    """Yield the HOST:PORT of a gRPC server on this machine."""
    server = grpc.server(ThreadPoolExecutor(160))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(script), server)
    address = f"127.0.0.1:{port}"
    bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield f"localhost:{bound}" if credentials else f"127.0.0.1:{bound}"
    finally:
        server.stop(0).wait()


@contextmanager
def http_server(script: Script, context: Any = None) -> Iterator[str]:
    """Yield the URL of an HTTP server on this machine."""
    server = Server(("127.0.0.1", 0), type("Scripted", (Handler,), {"script": script}))
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"{'https://localhost' if context else 'http://127.0.0.1'}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asked(url: str, ask: Callable[[AsyncClient], Awaitable[Result]], **options: Any) -> Result:
    """Return the result of `ask` with an asynchronous client."""

    async def run() -> Result:
        async with AsyncClient(url, **options) as client:
            return await ask(client)

    return asyncio.run(run())


def _inputs(request: Any, context: Any) -> tuple[dict[str, Any], dict[str, str], str]:
    pairs = zip(request.inputs, request.raw_input_contents, strict=True)
    values = {tensor.name: _value(tensor.datatype, content) for tensor, content in pairs}
    return values, dict(context.invocation_metadata()), request.id


def _binary_inputs(body: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], dict[str, str], str]:
    position = int(headers["inference-header-content-length"])
    head, values = json.loads(body[:position]), {}
    for tensor in head["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        values[tensor["name"]] = _value(tensor["datatype"], body[position : position + size])
        position += size
    return values, headers, head["id"]


def _value(datatype: str, content: bytes) -> Any:
    if datatype != "BYTES":
        return np.frombuffer(content, triton_to_np_dtype(datatype)).item()
    words = [word.decode() for word in deserialize_bytes_tensor(content)]
    return words[0] if len(words) == 1 else words


def _response(fields: dict[str, Any]) -> Any:
    response = pb.ModelInferResponse()
    for name, value in fields.items():
        response.outputs.add(name=name, datatype=OUTPUTS[name], shape=[1, 1])
        array = np.array([value.encode()], object) if isinstance(value, str) else np.array([value], np.int32)
        content = serialize_byte_tensor(array).item() if isinstance(value, str) else array.tobytes()
        response.raw_output_contents.append(content)
    return response


def _metadata(tensors: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": datatype, "shape": [-1, 1]} for name, datatype in tensors.items()]
