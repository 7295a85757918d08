"""The transport over gRPC, for blocking channels and channels of asyncio. Failures are raised as errors of hfx.

If waiting for an answer ends early (deadline, Ctrl-C, cancelled task, garbage collector), the call is cancelled on the
server too.
Source: the KServe v2 protocol and Triton's ModelStreamInfer.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from hfx.answering import cancellable
from hfx.client import errors
from hfx.client.address import Address, Tls, parse_address, ssl_context
from hfx.client.tensors import Array, datatype_of, from_bytes, to_bytes
from hfx.client.transport import PROBE_SECONDS, Request, Stream, Transport, completed
from hfx.errors import ServerError
from hfx.metadata import ModelMetadata, TensorMetadata

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The client makes its own retries, which the back-off of the channel must not delay.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
REFUSED = "Connection refused"
DIRECT = ("grpc.enable_http_proxy", 0)  # a proxy from the environment can't reach ports of this machine
# The time in which Triton ends a stream after an error. The client does not request the status of an error with the
# header `triton_grpc_error`, as Triton before 26.04 then frees memory that it still uses, and crashes
# (triton-inference-server/server #8708).
END_SECONDS = 1.0
Read = Callable[[float], Awaitable[Any]]  # returns the next message within a number of seconds, and None after the last


def open_transport(address: Address, headers: Mapping[str, str], tls: Tls | None, *, for_asyncio: bool) -> Transport:
    """Return a transport over a blocking channel, or over a channel of asyncio."""
    waits = _Waits(grpc.aio, _answer, _reader) if for_asyncio else _Waits(grpc, _blocking_answer, _blocking_reader)
    return _GrpcTransport(address, headers, tls, waits)


@dataclass(frozen=True)
class _Waits:
    """The functions that differ between blocking channels and channels of asyncio.

    `library` is grpc or grpc.aio. `answer(method, message, timeout=, metadata=)` calls a method of the stub. `reader`
    makes the Read function of a streaming call.
    """

    library: Any
    answer: Callable[..., Awaitable[Any]]
    reader: Callable[[Any], Read]


async def _blocking_answer(method: Any, message: Any, **options: Any) -> Any:
    call = method.future(message, **options)
    with cancellable(call.cancel):
        return call.result()


def _blocking_reader(call: Any) -> Read:
    """Return a Read function for a queue that a thread fills, as gRPC's own iterator has no timeout."""
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_enqueue, args=(call, messages), name="hfx-stream", daemon=True).start()

    async def read(timeout: float) -> Any:
        with cancellable(call.cancel):
            try:
                message = messages.get(timeout=timeout)
            except Empty:
                raise TimeoutError from None
        if isinstance(message, Exception):
            raise message
        return message

    return read


def _enqueue(call: Any, messages: SimpleQueue[Any]) -> None:
    try:
        for message in call:
            messages.put(message)
        messages.put(None)
    except Exception as error:  # `read` raises it
        messages.put(error)


async def _answer(method: Any, message: Any, **options: Any) -> Any:
    return await method(message, **options)


def _reader(call: Any) -> Read:
    async def read(timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout):
                message = await call.read()
        except TimeoutError:
            call.cancel()
            raise
        return None if message is grpc.aio.EOF else message

    return read


class _GrpcTransport:
    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None, waits: _Waits) -> None:
        self.url = address.url
        self._waits = waits
        self._channel = open_channel(waits.library, address, tls)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._headers = tuple(headers.items())

    async def infer(self, request: Request) -> dict[str, Array]:
        return decode_response(await self._call("ModelInfer", encode_request(request), request.timeout))

    def stream(self, request: Request) -> Stream:
        """Send the request at once, and return the stream of its answers."""
        messages = iter((encode_request(request),))
        call = self._stub.ModelStreamInfer(messages, timeout=request.timeout, metadata=self._headers)
        return _GrpcStream(call, self._waits.reader(call), self.url, request.timeout)

    async def is_live(self) -> bool:
        return await self._is("ServerLive", pb.ServerLiveRequest(), "live")

    async def is_ready(self) -> bool:
        return await self._is("ServerReady", pb.ServerReadyRequest(), "ready")

    async def models(self, timeout: float) -> list[str]:
        statistics = await self._call("ModelStatistics", pb.ModelStatisticsRequest(), timeout)
        return [model.name for model in statistics.model_stats]

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        description = await self._call("ModelMetadata", pb.ModelMetadataRequest(name=model), timeout)
        outputs = _tensors(description.outputs)
        metadata = ModelMetadata(model, _tensors(description.inputs), outputs)
        return await completed(metadata, self, timeout)

    async def parameter(self, model: str, name: str, timeout: float) -> str:
        response = await self._call("ModelConfig", pb.ModelConfigRequest(name=model), timeout)
        parameters = response.config.parameters
        return str(parameters[name].string_value) if name in parameters else ""

    async def close(self) -> None:
        closing = self._channel.close()
        if closing is not None:  # a channel of asyncio
            await closing

    async def _is(self, method: str, message: Any, field: str) -> bool:
        try:
            return bool(getattr(await self._call(method, message, PROBE_SECONDS), field))
        except ServerError as error:
            errors.check_authorized(error)
            return False

    async def _call(self, method: str, message: Any, timeout: float) -> Any:
        with _translated(self.url, timeout):
            options = {"timeout": timeout, "metadata": self._headers}
            return await self._waits.answer(getattr(self._stub, method), message, **options)


class _GrpcStream:
    def __init__(self, call: Any, read: Read, url: str, timeout: float) -> None:
        self._call = call
        self._read = read
        self._url = url
        self._timeout = timeout

    async def read(self, timeout: float) -> dict[str, Array] | None:
        with _translated(self._url, self._timeout, idle=timeout):
            message = await self._read(timeout)
        if message is None:
            return None
        if message.error_message:
            with suppress(ServerError), _translated(self._url, self._timeout, idle=END_SECONDS):
                await self._read(END_SECONDS)  # reads the end, so that a finished stream is not cancelled
            raise errors.failure("", message.error_message, self._url)
        return decode_response(message.infer_response)

    async def close(self) -> None:
        self._call.cancel()

    def cancel(self) -> None:
        self._call.cancel()


def encode_request(request: Request) -> Any:
    """Return the request as a ModelInferRequest message."""
    message = pb.ModelInferRequest(model_name=request.model, id=request.id)
    for name, array in request.inputs.items():
        message.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        message.raw_input_contents.append(to_bytes(array))
    return message


def decode_response(response: Any) -> dict[str, Array]:
    """Return the output tensors of a ModelInferResponse by name; BYTES tensors become arrays of `bytes` objects."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise ServerError("The server sent an answer without its tensors.", "Is the address that of a Triton server?")
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    return {
        tensor.name: from_bytes(tensor.name, tensor.datatype, tensor.shape, content) for tensor, content in contents
    }


@contextmanager
def _translated(url: str, timeout: float, idle: float = 0) -> Iterator[None]:
    """Raise the exceptions of the channel as errors of hfx."""
    try:
        yield
    except TimeoutError:
        raise errors.idle(url, idle) from None
    except grpc.FutureCancelledError as error:
        raise errors.client_closed(url) from error
    except asyncio.CancelledError:  # the task was cancelled, or the channel closed
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise errors.client_closed(url) from None
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise errors.timed_out(url, timeout) from error
        details = str(error.details() or "")
        failure = errors.failure(error.code().name, details, url)
        if REFUSED in details and _accepts_connections(url):
            failure.fix = errors.NOT_GRPC
        raise failure from error


def _accepts_connections(url: str) -> bool:
    """Return whether the port is open at any of the host's addresses.

    A name such as localhost may have several addresses. gRPC reports the failure of the last one, which may refuse a
    connection that another address accepts.
    """
    address = parse_address(url)
    try:
        with socket.create_connection((address.host, address.port), PROBE_SECONDS):
            return True
    except OSError:
        return False


def _tensors(tensors: Any) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors)


def open_channel(library: Any, address: Address, tls: Tls | None = None) -> Any:
    """Return a channel of `library` (grpc or grpc.aio). Raises UsageError for unusable TLS files."""
    options: Sequence[tuple[str, int]] = (*OPTIONS, DIRECT) if address.is_loopback else OPTIONS
    if not address.secure:
        return library.insecure_channel(address.target, options=options)
    tls = tls or Tls()
    ssl_context(tls)  # gRPC itself reports a bad file only as a failed handshake
    credentials = grpc.ssl_channel_credentials(_content(tls.ca), _content(tls.key), _content(tls.certificate))
    return library.secure_channel(address.target, credentials, options=options)


def _content(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
