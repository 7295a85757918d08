"""A served model whose times are known: gRPC in this process, on an event loop in a thread of its own.

The text of a request is an order: `sleep S` answers after S seconds, `fail CODE MESSAGE` not at all, `write N S` gives
N tokens, S seconds (0) after one another, and `hang` does not answer. What happens to all requests is the Service's.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from hfx.client.tensors import from_bytes, to_bytes, to_tensors

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


class Refused(Exception):
    """An order to fail: a status, and words."""


@dataclass
class Service:
    """What the server does to all requests, and what it saw.

    Between `stall` seconds from the first request on, nothing is served. `times` are what it took by its own clock:
    seconds from the arrival of each request to each of its pieces. Of requests, `cancelled` is their number, `peak`
    how many were under way at the same time.
    """

    stall: tuple[float, float] = (0.0, 0.0)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0
    cancelled: int = 0

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
            if self.stall[0] <= arrival - self.arrivals[0] < self.stall[1]:
                await asyncio.sleep(self.arrivals[0] + self.stall[1] - arrival)
            async for piece in self._answers(values["text_input"]):
                times.append(time.perf_counter() - arrival)
                yield piece
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    async def _answers(self, text: str) -> AsyncIterator[dict[str, Any]]:
        order, _, rest = text.partition(" ")
        if order == "fail":
            raise Refused(*rest.split(" ", 1))
        if order in ("sleep", "hang"):
            await asyncio.sleep(float(rest or 30.0))
        count, seconds = [*rest.split(), "0"][:2] if order == "write" else ("1", "0")
        for number in range(1, int(count) + 1):
            await asyncio.sleep(float(seconds))
            yield {"finish_reason": "length" if number == int(count) else "", "output_tokens": number}


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Triton's protocol, of which it needs these calls."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ServerLiveResponse(live=True)

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
    """A running server of a new Service, with TLS where there are credentials; `kill` ends it as a crash would."""

    def __init__(self, port: int = 0, credentials: Any = None) -> None:
        self.service = Service()
        self._port = port
        self._credentials = credentials
        self.url = ""
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # waits for microseconds, unlike epoll
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

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
        self._end = asyncio.Event()
        server = grpc.aio.server()
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


def _inputs(request: Any) -> dict[str, Any]:
    pairs = zip(request.inputs, request.raw_input_contents, strict=True)
    values = {each.name: from_bytes(each.name, each.datatype, each.shape, content).item() for each, content in pairs}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def _response(piece: dict[str, Any], model: str) -> Any:
    response = pb.ModelInferResponse(model_name=model)
    outputs = OUTPUTS[model.removesuffix("_stream")]
    values = {"label": "good", "score": 0.9, "text_output": "x ", "input_tokens": INPUT_TOKENS} | piece
    for name, array in to_tensors({name: [values[name]] for name in outputs}, outputs).items():
        response.outputs.add(name=name, datatype=outputs[name], shape=array.shape)
        response.raw_output_contents.append(to_bytes(array))
    return response


def _tensors(datatypes: dict[str, str]) -> list[Any]:
    kind = pb.ModelMetadataResponse.TensorMetadata
    return [kind(name=name, datatype=datatype, shape=[-1, 1]) for name, datatype in datatypes.items()]
