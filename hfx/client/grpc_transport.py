"""Requests as Triton's gRPC messages, and its failures as errors of hfx.

Written once for both ways of waiting, which the channel knows. It must not know tasks or texts. Source: the KServe v2
protocol and Triton's ModelStreamInfer.
"""

from __future__ import annotations

from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from hfx.client import failures
from hfx.client.grpc_channels import Channel, Messages, Still
from hfx.client.metadata import ModelMetadata, TensorMetadata
from hfx.client.tensors import Array, datatype_of, from_bytes, to_bytes
from hfx.client.transport import PROBE_SECONDS, Request, Stream
from hfx.errors import ServerError
from hfx.names import TEXT_OUTPUT

TASK = "task"  # the parameter of a model's configuration that tells what a generator was trained for


class GrpcTransport:
    """Requests over a gRPC channel."""

    def __init__(self, channel: Channel, url: str) -> None:
        self.url = url
        self._channel = channel

    async def infer(self, request: Request) -> dict[str, Array]:
        """The output tensors, by name."""
        return decode_response(await self._call("ModelInfer", encode_request(request), request.timeout))

    def stream(self, request: Request) -> Stream:
        """The answers of a decoupled model; the request is sent at once."""
        messages = self._channel.stream("ModelStreamInfer", encode_request(request), request.timeout)
        return _GrpcStream(messages, self.url, request.timeout)

    async def is_live(self) -> bool:
        """Whether the server answers."""
        try:
            return bool((await self._channel.unary("ServerLive", pb.ServerLiveRequest(), PROBE_SECONDS)).live)
        except grpc.RpcError:
            return False

    async def is_ready(self) -> bool:
        """Whether the server answers, and all of its models are ready."""
        try:
            return bool((await self._channel.unary("ServerReady", pb.ServerReadyRequest(), PROBE_SECONDS)).ready)
        except grpc.RpcError:
            return False

    async def models(self, timeout: float) -> list[str]:
        """The names of the ready models."""
        index = await self._call("RepositoryIndex", pb.RepositoryIndexRequest(ready=True), timeout)
        return [model.name for model in index.models]

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        """What MODEL takes and gives; of a generator, what it is for."""
        found = await self._call("ModelMetadata", pb.ModelMetadataRequest(name=model), timeout)
        outputs = _tensors(found.outputs)
        writes = any(tensor.name == TEXT_OUTPUT for tensor in outputs)
        task = await self._task(model, timeout) if writes else ""
        return ModelMetadata(model, _tensors(found.inputs), outputs, task)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def _task(self, model: str, timeout: float) -> str:
        found = await self._call("ModelConfig", pb.ModelConfigRequest(name=model), timeout)
        parameters = found.config.parameters
        return str(parameters[TASK].string_value) if TASK in parameters else ""

    async def _call(self, method: str, message: Any, timeout: float) -> Any:
        try:
            return await self._channel.unary(method, message, timeout)
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            raise _failure(error, self.url, timeout) from error


class _GrpcStream:
    def __init__(self, messages: Messages, url: str, timeout: float) -> None:
        self._messages = messages
        self._url = url
        self._timeout = timeout

    async def read(self, timeout: float) -> dict[str, Array] | None:
        try:
            message = await self._messages.read(timeout)
        except Still:
            raise failures.stillness(self._url, timeout) from None
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            raise _failure(error, self._url, self._timeout) from error
        if message is None:
            return None
        if message.error_message:
            raise failures.failure("", message.error_message, self._url)
        return decode_response(message.infer_response)

    async def close(self) -> None:
        self._messages.cancel()

    def cancel(self) -> None:
        self._messages.cancel()


def encode_request(request: Request) -> Any:
    """A ModelInferRequest."""
    message = pb.ModelInferRequest(model_name=request.model, id=request.id)
    for name, array in request.inputs.items():
        message.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        message.raw_input_contents.append(to_bytes(array))
    return message


def decode_response(response: Any) -> dict[str, Array]:
    """The output tensors of a ModelInferResponse by name; BYTES tensors become arrays of `bytes` objects."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise ServerError("The server sent an answer without its tensors.", "Is the address that of a Triton server?")
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    return {
        tensor.name: from_bytes(tensor.name, tensor.datatype, tensor.shape, content) for tensor, content in contents
    }


def _failure(error: Any, url: str, timeout: float) -> ServerError:
    if isinstance(error, grpc.FutureCancelledError):
        return failures.closed(url)
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return failures.lateness(url, timeout)
    return failures.failure(code.name, str(error.details() or ""), url)


def _tensors(tensors: Any) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors)
