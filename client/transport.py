"""How requests reach a Triton server, and its failures as errors of hfx.

A transport turns (model, input tensors) into a pending answer; the client does not know which protocol is below.
This file must not know tasks or texts. gRPC only: it carries binary tensors, deadlines and cancellation.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hfx.client.wire import Array, Tensors, decode_response, encode_request
from hfx.errors import HfxError, RequestRefused, ServerBusy, ServerError, ServerUnreachable, UsageError
from hfx.names import MEMBER_SUFFIXES

PROBE_SECONDS = 2.0
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
DIRECT = ("grpc.enable_http_proxy", 0)  # a proxy of the environment can't reach this machine's own ports
LOOPBACK = ("localhost", "127.", "[::1]")

# What Triton 2.51 says with UNAVAILABLE when it is the queue policy that refused.
QUEUE_REFUSALS = ("Exceeds maximum queue size", "Request timeout expired")


class Pending(Protocol):
    """An answer on its way."""

    def result(self) -> dict[str, Array]:
        """Wait for the answer: output tensors by name; raises ServerError and its kin."""

    def cancel(self) -> None:
        """Give up on the answer."""


class Transport(Protocol):
    """A connection to a server; the client's only way to it."""

    url: str

    def submit(self, model: str, inputs: Tensors, timeout: float) -> Pending:
        """Send a request and return at once; the answer must come within TIMEOUT seconds."""

    def is_ready(self) -> bool:
        """Whether the server answers, and that all of its models are ready."""

    def models(self, timeout: float) -> list[str]:
        """The names of the ready models, sorted, without the members of ensembles."""

    def metadata(self, model: str, timeout: float) -> ModelMetadata:
        """The tensors of MODEL."""

    def close(self) -> None:
        """Close the connection; pending answers fail."""


@dataclass(frozen=True)
class TensorMetadata:
    """A tensor of a model: `datatype` is Triton's (BYTES, INT32, …), -1 in `shape` a dimension of any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """What a model takes and gives."""

    name: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class GrpcTransport:
    """A gRPC channel to the Triton server at URL (`HOST:PORT`); safe to share between threads."""

    def __init__(self, url: str) -> None:
        self.url = check_url(url)
        options = (*OPTIONS, DIRECT) if url.startswith(LOOPBACK) else OPTIONS
        self._channel = grpc.insecure_channel(url, options=options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._closed = False

    @property
    def _calls(self) -> Any:
        if self._closed:
            raise UsageError(f"The connection to {self.url} is closed.", "Make a new Client, or ask inside its `with`.")
        return self._stub

    def submit(self, model: str, inputs: Tensors, timeout: float) -> Pending:
        """Send a request and return at once; the answer must come within TIMEOUT seconds."""
        call = self._calls.ModelInfer.future(encode_request(model, inputs), timeout=timeout)
        return _GrpcPending(self, call, model, timeout)

    def is_ready(self) -> bool:
        """Whether the server answers, and that all of its models are ready."""
        try:
            return bool(self._calls.ServerReady(service_pb2.ServerReadyRequest(), timeout=PROBE_SECONDS).ready)
        except grpc.RpcError:
            return False

    def models(self, timeout: float) -> list[str]:
        """The names of the ready models, sorted, without the members of ensembles."""
        try:
            index = self._calls.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True), timeout=timeout)
        except grpc.RpcError as error:
            raise self.failure(error, "", timeout) from error
        names = {model.name for model in index.models}
        return sorted(name for name in names if not _is_member(name, names))

    def metadata(self, model: str, timeout: float) -> ModelMetadata:
        """The tensors of MODEL."""
        try:
            answer = self._calls.ModelMetadata(service_pb2.ModelMetadataRequest(name=model), timeout=timeout)
        except grpc.RpcError as error:
            raise self.failure(error, model, timeout) from error
        return ModelMetadata(answer.name, _tensors(answer.inputs), _tensors(answer.outputs))

    def close(self) -> None:
        """Close the connection; pending answers fail."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def failure(self, error: grpc.RpcError, model: str, timeout: float) -> HfxError:
        """The error of hfx for a failed call about MODEL."""
        code, text = error.code(), str(error.details() or "no reason given")
        if code == grpc.StatusCode.UNAVAILABLE:
            return self._unavailable(text)
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._late(timeout)
        if code == grpc.StatusCode.NOT_FOUND or "unknown model" in text:
            return self._unknown_model(model, text)
        if code == grpc.StatusCode.CANCELLED:
            return ServerUnreachable(f"The connection to {self.url} was closed before the answer came.")
        if "is not healthy" in text:
            return ServerError(
                text, "A process of the server died: restart the server (`hfx serve` does so by itself)."
            )
        return RequestRefused(text)

    def _unavailable(self, text: str) -> HfxError:
        if any(refusal in text for refusal in QUEUE_REFUSALS):
            return ServerBusy(
                f"The server at {self.url} is busy: {text}", "Send fewer requests at a time, or try again later."
            )
        return ServerUnreachable(
            f"The server at {self.url} can't be reached: {text}",
            "Start one with `hfx serve`, or give the address of its gRPC port (HOST:PORT).",
        )

    def _late(self, timeout: float) -> HfxError:
        if self._is_live():
            return ServerBusy(
                f"The server at {self.url} did not answer within {timeout:g} s.",
                "Send fewer requests at a time, or give a longer timeout.",
            )
        return ServerUnreachable(
            f"Nothing answers at {self.url} (waited {timeout:g} s).", "Check the address and port, and the firewall."
        )

    def _is_live(self) -> bool:
        try:
            return bool(self._calls.ServerLive(service_pb2.ServerLiveRequest(), timeout=PROBE_SECONDS).live)
        except grpc.RpcError:
            return False

    def _unknown_model(self, model: str, text: str) -> HfxError:
        try:
            present = self.models(PROBE_SECONDS)
        except ServerError:
            return RequestRefused(text)
        fix = f"It serves: {', '.join(present)}." if present else "It serves no model at all."
        return RequestRefused(f"The server at {self.url} has no model {model!r}.", fix)


class _GrpcPending:
    def __init__(self, transport: GrpcTransport, call: Any, model: str, timeout: float) -> None:
        self._transport = transport
        self._call = call
        self._model = model
        self._timeout = timeout

    def result(self) -> dict[str, Array]:
        try:
            return decode_response(self._call.result())
        except grpc.RpcError as error:
            raise self._transport.failure(error, self._model, self._timeout) from error
        except grpc.FutureCancelledError as error:
            raise ServerUnreachable(f"The connection to {self._transport.url} was closed.") from error

    def cancel(self) -> None:
        self._call.cancel()


def check_url(url: str) -> str:
    """URL when it is `HOST:PORT`; raises UsageError otherwise."""
    host, _, port = url.rpartition(":")
    if "://" in url or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"{url!r} is no address of a gRPC server.", "Give HOST:PORT without http://, e.g. 127.0.0.1:8001."
        )
    return url


def check_timeout(timeout: float) -> float:
    """TIMEOUT when it is a positive number of seconds; raises UsageError otherwise."""
    if not (timeout > 0 and math.isfinite(timeout)):
        raise UsageError(f"A timeout of {timeout} s can't be kept.", "Give a positive number of seconds.")
    return timeout


def _is_member(name: str, names: Collection[str]) -> bool:
    return any(name.endswith(suffix) and name.removesuffix(suffix) in names for suffix in MEMBER_SUFFIXES)


def _tensors(tensors: Any) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors)
