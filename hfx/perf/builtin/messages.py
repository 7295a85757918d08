"""Requests as bytes before the clock runs, and answers read from bytes after it: KServe's gRPC messages.

Owns what is looked for in an answer: counts of tokens and how a text ended. It must not know when anything is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hfx import names
from hfx.client import ModelMetadata
from hfx.errors import UsageError
from hfx.metadata import check_values
from hfx.perf.load import Request, RequestSet
from hfx.perf.load.columns import text_tensors

MILLI = 1000
WANTED = frozenset({names.FINISH_REASON, names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.TRUNCATED_TOKENS})


@dataclass(frozen=True)
class Piece:
    """What a message says: tokens read and written up to here, those cut off, why the text ended ("" before its end).

    `error` is what a stream says in place of an answer.
    """

    read: int = 0
    written: int = 0
    truncated: int = 0
    finish_reason: str = ""
    error: str = ""


def encoded(asks: RequestSet, model: ModelMetadata, stream: bool, timeout: float) -> tuple[bytes, ...]:
    """A ModelInferRequest for each request. Raises UsageError for a request that MODEL does not take."""
    needed = text_tensors(model.input_types)
    extra: dict[str, tuple[Any, ...]] = {}
    if names.TIMEOUT_MS in model.input_types:  # so that a generator does not go on for nobody
        extra[names.TIMEOUT_MS] = (min(max(1, round(timeout * MILLI)), 2**31 - 1),)
    if stream:
        extra[names.STREAM] = (True,)
    return tuple(_encoded(replace(ask, inputs=extra | dict(ask.inputs)), model, needed) for ask in asks.items)


def read_answer(message: bytes) -> Piece:
    """What a ModelInferResponse says."""
    from tritonclient.grpc import service_pb2

    return _piece(service_pb2.ModelInferResponse.FromString(message))


def read_streamed(message: bytes) -> Piece:
    """What a ModelStreamInferResponse says."""
    from tritonclient.grpc import service_pb2

    answer = service_pb2.ModelStreamInferResponse.FromString(message)
    return Piece(error=answer.error_message) if answer.error_message else _piece(answer.infer_response)


def _encoded(ask: Request, model: ModelMetadata, needed: Sequence[str]) -> bytes:
    from tritonclient.grpc import service_pb2

    from hfx.client.tensors import datatype_of, to_bytes, to_tensors

    missing = [name for name in needed if name not in ask.inputs]
    if missing:
        raise UsageError(
            f"The model {model.name!r} needs a {missing[0]}, which the requests do not have.",
            f"Say which column it is with --column {missing[0]}=COLUMN.",
        )
    check_values(model, ask.inputs)
    message = service_pb2.ModelInferRequest(model_name=model.name)
    for name, array in to_tensors(ask.inputs, model.input_types).items():
        message.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        message.raw_input_contents.append(to_bytes(array))
    return bytes(message.SerializeToString())


def _piece(answer: Any) -> Piece:
    contents = zip(answer.outputs, answer.raw_output_contents, strict=False)
    raw: Mapping[str, bytes] = {tensor.name: content for tensor, content in contents if tensor.name in WANTED}
    read, written, truncated = (
        _number(raw.get(name, b"")) for name in (names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.TRUNCATED_TOKENS)
    )
    # A text is preceded by its length.
    return Piece(read, written, truncated, raw.get(names.FINISH_REASON, b"")[4:].decode(errors="replace"))


def _number(content: bytes) -> int:
    return int(struct.unpack_from("<i", content)[0]) if len(content) >= 4 else 0
