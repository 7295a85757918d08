"""Requests and answers as bodies of Triton's HTTP protocol: binary tensors of plain calls, JSON events of streams.

Source: the KServe v2 protocol with Triton's binary tensor data extension, and its generate extension.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hfx.client.tensors import Array, datatype_of, from_bytes, from_list, to_bytes
from hfx.client.transport import Request
from hfx.errors import ServerError
from hfx.metadata import ModelMetadata, TensorMetadata

HEADER_LENGTH = "inference-header-content-length"
EVENT = "data:"
BINARY = "application/octet-stream"
JSON = "application/json"


def encode_infer(request: Request) -> tuple[bytes, dict[str, str]]:
    """The body and headers of POST /v2/models/NAME/infer."""
    contents = [to_bytes(array) for array in request.inputs.values()]
    head = json.dumps(
        {
            "id": request.id,
            "inputs": [
                {
                    "name": name,
                    "datatype": datatype_of(array),
                    "shape": array.shape,
                    "parameters": {"binary_data_size": len(content)},
                }
                for (name, array), content in zip(request.inputs.items(), contents, strict=True)
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return b"".join((head, *contents)), {"content-type": BINARY, HEADER_LENGTH: str(len(head))}


def decode_infer(body: bytes, headers: Mapping[str, str]) -> dict[str, Array]:
    """The output tensors by name. Raises ServerError for what is no answer."""
    tensors = {}
    with _parsing():
        position = end = int(headers.get(HEADER_LENGTH, len(body)))
        for output in _parsed(body[:end])["outputs"]:
            name, datatype, shape = output["name"], output["datatype"], output["shape"]
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                tensors[name] = from_list(name, datatype, shape, _flat(output["data"]))
            else:
                content, position = body[position : position + size], position + size
                tensors[name] = from_bytes(name, datatype, shape, content)
    return tensors


def encode_generate(request: Request) -> tuple[bytes, dict[str, str]]:
    """The body and headers of POST /v2/models/NAME/generate_stream."""
    fields = {name: _plain(array) for name, array in request.inputs.items()}
    return json.dumps({"id": request.id, **fields}).encode(), {"content-type": JSON}


def decode_event(line: str, outputs: Sequence[TensorMetadata]) -> dict[str, Array] | str | None:
    """The tensors of one line of a stream, its error's text, or None for a line that says nothing."""
    if not line.startswith(EVENT):
        return None
    with _parsing():
        fields = _parsed(line.removeprefix(EVENT))
        if "error" in fields:
            return str(fields["error"])
        return {tensor.name: _from_event(tensor, fields[tensor.name]) for tensor in outputs if tensor.name in fields}


def decode_metadata(name: str, body: bytes) -> ModelMetadata:
    """The inputs and outputs of a model."""
    with _parsing():
        description = _parsed(body)
        return ModelMetadata(name, _tensors(description["inputs"]), _tensors(description["outputs"]))


def decode_parameter(body: bytes, name: str) -> str:
    """A parameter of a model's configuration; empty if it has none of this `name`."""
    with _parsing():
        return str(_parsed(body).get("parameters", {}).get(name, {}).get("string_value", ""))


def decode_statistics(body: bytes) -> list[str]:
    """The names of the ready models, which the statistics list; the index of the repository may be closed."""
    with _parsing():
        return [str(model["name"]) for model in _parsed(body)["model_stats"]]


def error_text(body: bytes) -> str:
    """What the server says of a failure: the `error` of Triton or of another API, or how the body begins."""
    try:
        error = _parsed(body.removeprefix(EVENT.encode()))["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return f"an answer that is not Triton's: {body[:100].decode('utf-8', 'replace')!r}"


def _parsed(text: str | bytes) -> Any:
    """The JSON value of `text`; raises ValueError for what is none, or nested without end."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _from_event(tensor: TensorMetadata, value: Any) -> Array:
    items = value if isinstance(value, list) else [value]
    return from_list(tensor.name, tensor.datatype, (1, len(items)), items)


def _plain(array: Array) -> Any:
    """A tensor's value, or the list of its values."""
    items = [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]
    return items[0] if len(items) == 1 else items


def _flat(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return [data]
    return [item for each in data for item in _flat(each)]


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(str(tensor["name"]), str(tensor["datatype"]), tuple(int(size) for size in tensor["shape"]))
        for tensor in tensors
    )


@contextmanager
def _parsing() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServerError(
            f"The server's answer can't be read ({error!r}).", "Is the address that of a Triton server's HTTP port?"
        ) from error
