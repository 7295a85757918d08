"""The interfaces of a generator by raw gRPC: the generated stub, raw tensors, infer and ModelStreamInfer."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hfx.triton import EmbeddedServer
from tests.rigs.clients.generation_requests import DATATYPES, TIMEOUT, Answer, Ask, AskFailed, Event, answer_of, tensors

NUMPY = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}
# Channels share connections by default; each caller here has its own connection.
CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


@contextmanager
def grpc_stub(server: EmbeddedServer) -> Iterator[Any]:
    """Yield the generated stub on a separate channel."""
    with grpc.insecure_channel(server.grpc_url, CHANNEL) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def grpc_request(model: str, fields: Mapping[str, Any], request_id: str = "") -> Any:
    """Return a request with `fields` as raw tensors."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, values in tensors(fields):
        request.inputs.add(name=name, datatype=DATATYPES[name], shape=[1, len(values)])
        request.raw_input_contents.append(_raw(DATATYPES[name], values))
    return request


def grpc_infer(server: EmbeddedServer, ask: Ask) -> Answer:
    """Send a plain infer request to NAME."""
    with grpc_stub(server) as stub:
        try:
            answer = stub.ModelInfer(grpc_request(ask.model, ask.fields), timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise AskFailed(error.code().name, error.details()) from None
    return answer_of([_event(answer)])


@contextmanager
def grpc_pieces(server: EmbeddedServer, ask: Ask, timeout: float = TIMEOUT) -> Iterator[Iterator[Event]]:
    """Yield the responses of a gRPC stream; leaving the block early cancels the call."""
    request = grpc_request(f"{ask.model}_stream", {"stream": True, **ask.fields})
    with grpc_stub(server) as stub:
        call = stub.ModelStreamInfer(iter([request]), timeout=timeout)
        try:
            yield grpc_events(call)
        finally:
            call.cancel()


def grpc_events(call: Any) -> Iterator[Event]:
    """Yield the responses of ModelStreamInfer. Raises AskFailed."""
    try:
        for answer in call:
            if answer.error_message:
                raise AskFailed("", answer.error_message)
            event = _event(answer.infer_response)
            if event:
                yield event
    except grpc.RpcError as error:
        raise AskFailed(error.code().name, error.details()) from None


def grpc_whole(server: EmbeddedServer, ask: Ask) -> Answer:
    """Request the whole text at once on a gRPC stream of NAME_stream."""
    with grpc_pieces(server, Ask(ask.model, ask.text, {**ask.settings, "stream": False})) as events:
        answers = list(events)
    assert len(answers) == 1
    return answer_of(answers)


def _event(response: Any) -> Event:
    """Return the tensors of a response; text must be UTF-8."""
    found: Event = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.datatype == "BYTES":
            found[output.name] = raw[4:].decode()
        else:
            values = np.frombuffer(raw, NUMPY[output.datatype]).tolist()
            found[output.name] = values[0] if list(output.shape) == [1, 1] else values
    return found


def _raw(datatype: str, values: Iterable[Any]) -> bytes:
    if datatype != "BYTES":
        return np.array(values, NUMPY[datatype]).tobytes()
    encoded = [value if isinstance(value, bytes) else value.encode() for value in values]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)
