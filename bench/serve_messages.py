"""Requests and answers of Triton's gRPC and generate APIs as bytes, made before and read after the clock runs.

Owns the forms of the messages. It must not know when and how they are sent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from bench.serve_answers import Piece
from bench.serve_cases import Ask
from hfx import names


def infer_request(model: str, ask: Ask) -> bytes:
    """A ModelInferRequest."""
    return _request(model, ask, ())


def stream_request(model: str, ask: Ask) -> bytes:
    """A ModelInferRequest for pieces as they come."""
    return _request(model, ask, ((names.STREAM, "BOOL", b"\1"),))


def infer_answer(message: bytes) -> Piece:
    """What a ModelInferResponse says."""
    from tritonclient.grpc import service_pb2

    return _piece(service_pb2.ModelInferResponse.FromString(message))


def stream_answer(message: bytes) -> Piece:
    """What a ModelStreamInferResponse says. Raises ValueError for an error."""
    from tritonclient.grpc import service_pb2

    answer = service_pb2.ModelStreamInferResponse.FromString(message)
    if answer.error_message:
        raise ValueError(answer.error_message)
    return _piece(answer.infer_response)


def generate_request(ask: Ask) -> bytes:
    """The JSON of the generate endpoint."""
    return json.dumps({names.TEXT_INPUT: ask.text, names.MAX_TOKENS: ask.new}).encode()


def generate_answer(body: bytes) -> Piece:
    """What the generate endpoint's JSON says. Raises ValueError for an error."""
    answer: Mapping[str, Any] = json.loads(body)
    if "error" in answer:
        raise ValueError(answer["error"])
    counts = (int(answer[name]) for name in (names.INPUT_TOKENS, names.OUTPUT_TOKENS))
    return Piece(answer[names.TEXT_OUTPUT], answer[names.FINISH_REASON], *counts)


def _piece(answer: Any) -> Piece:
    raw = dict(zip((tensor.name for tensor in answer.outputs), answer.raw_output_contents, strict=True))
    # A text is preceded by its length; what says nothing may be missing before the end.
    texts = (raw.get(name, b"")[4:].decode() for name in (names.TEXT_OUTPUT, names.FINISH_REASON))
    counts = (struct.unpack("<i", raw.get(name, b"\0\0\0\0"))[0] for name in (names.INPUT_TOKENS, names.OUTPUT_TOKENS))
    return Piece(*texts, *counts)


def _request(model: str, ask: Ask, settings: Sequence[tuple[str, str, bytes]]) -> bytes:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    text = ask.text.encode()
    tensors = (
        (names.TEXT_INPUT, "BYTES", struct.pack("<I", len(text)) + text),
        (names.MAX_TOKENS, "INT32", struct.pack("<i", ask.new)),
        *settings,
    )
    for name, datatype, raw in tensors:
        request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        request.raw_input_contents.append(raw)
    return bytes(request.SerializeToString())
