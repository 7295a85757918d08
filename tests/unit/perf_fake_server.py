"""A served model whose times are known: gRPC in this process, on an event loop in a thread of its own.

The text of a request is an order: `sleep S` answers after S seconds, `fail CODE WORDS` not at all, `write N EACH` gives
N tokens, EACH seconds after one another, and `hang` never answers. What happens to all requests is told by the Service.
"""

from __future__ import annotations

import asyncio
import selectors
import struct
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

CLASSIFIER, WRITER = "labels", "writer"
INPUTS = {
    CLASSIFIER: {"text_input": "BYTES", "top_k": "INT32"},
    WRITER: {"text_input": "BYTES", "max_tokens": "INT32", "stream": "BOOL", "timeout_ms": "INT32"},
}
OUTPUTS = {
    CLASSIFIER: {"label": "BYTES", "score": "FP32"},
    WRITER: {"text_output": "BYTES", "finish_reason": "BYTES", "input_tokens": "INT32", "output_tokens": "INT32"},
}
INPUT_TOKENS = 3
LONG = 30.0


class Refused(Exception):
    """An order to fail: a status, and words."""


@dataclass
class Service:
    """What the server does to all requests, and what it saw.

    `slots` serve at a time, the others queue; between `stall` seconds from the first request on, nothing is served.
    A connection may have `streams` calls at a time. `times` are what it took by its own clock: seconds from the arrival
    of each request to each of its pieces.
    """

    slots: int = 10_000
    stall: tuple[float, float] | None = None
    streams: int | None = None
    inputs: list[dict[str, Any]] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0
    left: int = 0
    lock: asyncio.Semaphore = field(init=False)

    @property
    def texts(self) -> list[str]:
        """The texts in the order that they came."""
        return [each["text_input"] for each in self.inputs]

    async def pieces(self, values: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The answers to a request."""
        self.inputs.append(values)
        arrival, times = time.perf_counter(), list[float]()
        self.arrivals.append(arrival)
        self.times.append(times)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            async with self.lock:
                await self._stalled()
                async for piece in self._answers(values["text_input"]):
                    times.append(time.perf_counter() - arrival)
                    yield piece
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.in_flight -= 1

    async def _stalled(self) -> None:
        if self.stall is None:
            return
        since = time.perf_counter() - self.arrivals[0]
        if self.stall[0] <= since < self.stall[1]:
            await asyncio.sleep(self.stall[1] - since)

    async def _answers(self, text: str) -> AsyncIterator[dict[str, Any]]:
        order, _, rest = text.partition(" ")
        if order == "fail":
            raise Refused(*rest.split(" ", 1))
        if order in ("sleep", "hang"):
            await asyncio.sleep(float(rest) if order == "sleep" else LONG)
        if order != "write":
            yield _written("x", 1, "stop")
            return
        count, each = int(rest.split()[0]), float(rest.split()[1])
        for number in range(1, count + 1):
            await asyncio.sleep(each)
            yield _written("x ", number, "length" if number == count else "")


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Triton's protocol, of which it needs these calls."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ServerReadyResponse(ready=True)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        kind = pb.RepositoryIndexResponse.ModelIndex
        return pb.RepositoryIndexResponse(models=[kind(name=name) for name in INPUTS])

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        name = request.name.removesuffix("_stream")
        if name not in INPUTS:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        inputs, outputs = (_tensors(each[name]) for each in (INPUTS, OUTPUTS))
        return pb.ModelMetadataResponse(name=request.name, inputs=inputs, outputs=outputs)

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = pb.ModelConfigResponse()
        if request.name.startswith(WRITER):
            response.config.parameters["task"].string_value = "text-generation"
        return response

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            last: dict[str, Any] = {}
            async for piece in self.service.pieces(_inputs(request)):
                last = piece
        except Refused as refusal:
            await context.abort(getattr(grpc.StatusCode, refusal.args[0]), refusal.args[1])
        return _response(last, request.model_name)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: N802
        async for request in requests:
            try:
                async for piece in self.service.pieces(_inputs(request)):
                    yield pb.ModelStreamInferResponse(infer_response=_response(piece, request.model_name))
            except Refused as refusal:
                if ("triton_grpc_error", "true") in tuple(context.invocation_metadata()):
                    await context.abort(getattr(grpc.StatusCode, refusal.args[0]), refusal.args[1])
                yield pb.ModelStreamInferResponse(error_message=refusal.args[1])


class FakeServer:
    """A running server; `kill` ends it as a crash would."""

    def __init__(self, service: Service, port: int = 0, credentials: Any = None) -> None:
        self.service = service
        self._port = port
        self._credentials = credentials
        self.url = ""
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # waits for microseconds, unlike epoll
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    def kill(self) -> None:
        """End it now."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(20)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self.service.lock = asyncio.Semaphore(self.service.slots)
        self._end = asyncio.Event()
        options = [] if self.service.streams is None else [("grpc.max_concurrent_streams", self.service.streams)]
        server = grpc.aio.server(options=options)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(self.service), server)
        address = f"127.0.0.1:{self._port}"
        if self._credentials is None:
            self.url = f"127.0.0.1:{server.add_insecure_port(address)}"
        else:
            self.url = f"grpcs://localhost:{server.add_secure_port(address, self._credentials)}"
        await server.start()
        self._ready.set()
        await self._end.wait()
        await server.stop(0)
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=5)


@contextmanager
def fake_server(service: Service | None = None, credentials: Any = None) -> Iterator[FakeServer]:
    """A server of a Service, with TLS where there are credentials."""
    server = FakeServer(service or Service(), credentials=credentials)
    try:
        yield server
    finally:
        server.kill()


def _inputs(request: Any) -> dict[str, Any]:
    pairs = zip(request.inputs, request.raw_input_contents, strict=True)
    return {tensor.name: _value(tensor.datatype, content) for tensor, content in pairs}


def _value(datatype: str, content: bytes) -> Any:
    if datatype == "BYTES":
        return content[4:].decode()
    return struct.unpack({"BOOL": "<?", "INT32": "<i"}[datatype], content)[0]


def _written(text: str, count: int, reason: str) -> dict[str, Any]:
    return {"text_output": text, "finish_reason": reason, "input_tokens": INPUT_TOKENS, "output_tokens": count}


def _response(piece: dict[str, Any], model: str) -> Any:
    response = pb.ModelInferResponse(model_name=model)
    outputs = OUTPUTS[WRITER] if model.startswith(WRITER) else OUTPUTS[CLASSIFIER]
    values = {"label": "good", "score": 0.9} | piece
    for name, datatype in outputs.items():
        response.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        response.raw_output_contents.append(_content(values[name]))
    return response


def _content(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", len(value)) + value.encode()
    return struct.pack("<f" if isinstance(value, float) else "<i", value)


def _tensors(datatypes: dict[str, str]) -> list[Any]:
    kind = pb.ModelMetadataResponse.TensorMetadata
    return [kind(name=name, datatype=datatype, shape=[-1, 1]) for name, datatype in datatypes.items()]
