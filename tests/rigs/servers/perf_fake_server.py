"""A served model with known times: gRPC in this process, on an event loop in its own thread.

The text of a request is a command: `sleep S` answers after S seconds, `fail CODE MESSAGE` answers with an error, `write
N S` gives N tokens S seconds (0) apart, and `hang` does not answer.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import AsyncIterator
from typing import Any, Self

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from hfx.client.tensors import from_bytes, to_bytes, to_tensors
from hfx.perf.load import Request, RequestSet

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
HANG_SECONDS = 30.0


def orders(*texts: str, **settings: int) -> RequestSet:
    """Return a request for each text, all with `settings`."""
    shared = {name: (value,) for name, value in settings.items()}
    return RequestSet(tuple(Request({"text_input": (text,), **shared}) for text in texts), "orders")


class FakeServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """A running server, with TLS if there are credentials; `kill` ends it as a crash would.

    Between `stall` seconds after the first request, nothing is served. `times` are measured by the server's clock:
    seconds from the arrival of each request to each of its pieces. `cancelled` is a number of requests, and `peak` is
    the largest number of concurrent requests.
    """

    def __init__(self, port: int = 0, credentials: Any = None) -> None:
        self.stall = (0.0, 0.0)
        self.has_statistics = True
        self.inputs: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []  # of streams
        self.arrivals: list[float] = []
        self.times: list[list[float]] = []
        self.in_flight = self.peak = self.cancelled = 0
        self._address, self._credentials = f"127.0.0.1:{port}", credentials
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # waits for microseconds, unlike epoll
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End the server now."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(20)

    async def _serve(self) -> None:
        self._end, server = asyncio.Event(), grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)
        if self._credentials is None:
            self.url = f"127.0.0.1:{server.add_insecure_port(self._address)}"
        else:
            self.url = f"grpcs://localhost:{server.add_secure_port(self._address, self._credentials)}"
        await server.start()
        self._ready.set()
        await self._end.wait()
        await server.stop(0)
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=5)

    @property
    def texts(self) -> list[str]:
        """The texts in the order of their arrival."""
        return [each["text_input"] for each in self.inputs]

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ServerLiveResponse(live=True)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not self.has_statistics:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no statistics")
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(name=name) for name in INPUTS])

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        name = request.name.removesuffix("_stream")
        if name not in INPUTS:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        kind = pb.ModelMetadataResponse.TensorMetadata
        inputs, outputs = (
            [kind(name=tensor, datatype=datatype, shape=[-1, 1]) for tensor, datatype in tensors[name].items()]
            for tensors in (INPUTS, OUTPUTS)
        )
        return pb.ModelMetadataResponse(name=request.name, inputs=inputs, outputs=outputs)

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = pb.ModelConfigResponse()
        if request.name.startswith(WRITER):
            response.config.parameters["task"].string_value = "text-generation"
        return response

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        return [response async for response in self._responses(request, context)][-1]

    async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: N802
        self.headers.append(dict(context.invocation_metadata()))
        async for request in requests:
            async for response in self._responses(request, context):
                if isinstance(response, str):
                    yield pb.ModelStreamInferResponse(error_message=response)
                else:
                    yield pb.ModelStreamInferResponse(infer_response=response)

    async def _responses(self, request: Any, context: Any) -> AsyncIterator[Any]:
        pairs = zip(request.inputs, request.raw_input_contents, strict=True)
        values = {each.name: from_bytes(each.name, each.datatype, each.shape, raw).item() for each, raw in pairs}
        self.inputs.append({name: each.decode() if isinstance(each, bytes) else each for name, each in values.items()})
        arrival, times = time.perf_counter(), list[float]()
        self.arrivals.append(arrival)
        self.times.append(times)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            if self.stall[0] <= arrival - self.arrivals[0] < self.stall[1]:
                await asyncio.sleep(self.arrivals[0] + self.stall[1] - arrival)
            order, _, rest = values["text_input"].decode().partition(" ")
            if order == "fail":
                code, _, message = rest.partition(" ")
                await context.abort(getattr(grpc.StatusCode, code), message)
            if order == "refuse":
                yield rest
                return
            if order in ("sleep", "hang"):
                await asyncio.sleep(float(rest or HANG_SECONDS))
            count, seconds = [*rest.split(), "0"][:2] if order == "write" else ("1", "0")
            for number in range(1, int(count) + 1):
                await asyncio.sleep(float(seconds))
                times.append(time.perf_counter() - arrival)
                yield _response(request.model_name, number, number == int(count))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1


def _response(model: str, count: int, is_last: bool) -> Any:
    values = {
        "label": "good", "score": 0.9, "text_output": "x ", "input_tokens": INPUT_TOKENS, "output_tokens": count,
        "finish_reason": "length" if is_last else "",
    }  # fmt: skip
    response, outputs = pb.ModelInferResponse(model_name=model), OUTPUTS[model.removesuffix("_stream")]
    for name, array in to_tensors({name: [values[name]] for name in outputs}, outputs).items():
        response.outputs.add(name=name, datatype=outputs[name], shape=array.shape)
        response.raw_output_contents.append(to_bytes(array))
    return response
