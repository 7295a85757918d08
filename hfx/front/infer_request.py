"""Reads infer requests of the V2 protocol strictly, and writes them again with binary tensors only.

Triton 2.51 computes the buffer size of a JSON tensor as the product of its shape in 64 bits, which can overflow: INT32
of shape [1, 2**62] gets a buffer of 0 bytes, and its values are written past the end. The front therefore sends Triton
no JSON tensor, and no shape that does not fit its content. Parts of a request that Triton does not read are left out.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hfx.client.tensors import BYTES, DATA_TYPES
from hfx.front.fields import shown
from hfx.front.refusals import Refusal, invalid

MOST_DIMENSIONS = 8
MOST_SIZE = 2**31 - 1  # of a dimension, also if another dimension is 0
ITEM_BYTES = {name: dtype.itemsize for name, dtype in DATA_TYPES.items()} | {"BF16": 2}
LENGTH_BYTES = 4  # before each string
NOT_IN_JSON = ("FP16", "BF16")
BINARY_SIZE = "binary_data_size"
SEQUENCE_ID = "sequence_id"
# The parameter in which MLServer's clients name the codec of their values. With the codecs in PLAIN_CODECS, the values
# of a request are sent as Triton reads them. With the codecs in CODED, the texts of an input encode something else,
# such as images.
CONTENT_TYPE = "content_type"
PLAIN_CODECS = ("str", "np", "pd", "hf")
CODED = ("base64", "datetime", "nplist", "pillow_image", "hg_conversation")
INT64 = range(-(2**63), 2**63)
# The request parameters that Triton itself reads, and their types. It reserves all other names with its prefix.
TRITON_PREFIX = "triton_"
TRITON_PARAMETERS: Mapping[str, tuple[type, ...]] = {
    "binary_data_output": (bool,),
    "priority": (int,),
    "sequence_end": (bool,),
    "sequence_id": (int, str),
    "sequence_start": (bool,),
    "timeout": (int,),
    "triton_enable_empty_final_response": (bool,),
}


def binary_request(body: bytes, head_length: int | None, name: str = "") -> tuple[bytes, int]:
    """Return the request with binary tensors, and the length of the JSON at its beginning.

    `head_length` is the length of the JSON in `body`. None means that all of `body` is JSON; 0 means that it is one raw
    tensor, which stays as it is. A request without a sequence parameter gets `name` as its sequence_id: see `ending`.
    Raises Refusal (400).
    """
    if head_length == 0:
        return body, 0
    try:  # decoded, because json.loads reads bytes in UTF-16 too, in which guard.py counts wrongly
        request = _typed(json.loads(body[:head_length].decode()), dict, "The request")
    except (ValueError, RecursionError):
        raise invalid("The body is not JSON. Send one JSON object in UTF-8.") from None
    head: dict[str, Any] = {}
    if "id" in request:
        head["id"] = _typed(request["id"], str, "id")
    if "parameters" in request:
        head["parameters"] = _parameters(request["parameters"])
    if name and not any(key.startswith("sequence_") for key in head.get("parameters", {})):
        head["parameters"] = {**head.get("parameters", {}), SEQUENCE_ID: name}
    if "outputs" in request:
        head["outputs"] = [_output(each) for each in _typed(request["outputs"], list, "outputs")]
    head["inputs"], contents = _inputs(_typed(request.get("inputs"), list, "inputs"), body[head_length or len(body) :])
    encoded = json.dumps(head).encode()
    return b"".join((encoded, *contents)), len(encoded)


def ending(name: str, inputs: Sequence[str]) -> bytes:
    """Return the body of a request that ends the request `name` to a model with these `inputs`.

    Triton 2.51 does not notice that an HTTP client has disconnected. Therefore, this request names the sequence_id of
    the abandoned request, and says that the sequence ends. Backends that support this, such as the C++ backend for
    encoders, then end the abandoned request. Any other model just answers this request, whose text is one letter.
    """
    tensors = [{"name": each, "shape": [1, 1], "datatype": BYTES, "data": ["a"]} for each in inputs]
    return json.dumps({"inputs": tensors, "parameters": {SEQUENCE_ID: name, "sequence_end": True}}).encode()


def _inputs(tensors: Sequence[Any], binary: bytes) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the heads and contents of the inputs. `binary` has the contents that are not JSON, one after another."""
    heads, contents, position = [], [], 0
    for tensor in tensors:
        fields = _typed(tensor, dict, "An input")
        name = _name(fields)
        shape, datatype = _shape(name, fields.get("shape")), fields.get("datatype")
        if datatype != BYTES and (not isinstance(datatype, str) or datatype not in ITEM_BYTES):
            raise _refused(name, f"has the datatype {shown(datatype)}", f"Send {', '.join([BYTES, *ITEM_BYTES])}")
        parameters = _typed(fields.get("parameters", {}), dict, f"parameters of the input {name!r}")
        if any(key.startswith("shared_memory") for key in parameters):
            raise _refused(name, "is in shared memory, which is closed", "Send its values")
        refuse_coded(name, parameters)
        if BINARY_SIZE in parameters:
            size = parameters[BINARY_SIZE]
            if type(size) is not int or not 0 <= size <= len(binary) - position:
                raise _refused(name, f"has a {BINARY_SIZE} of {shown(size)}", "Send the size of its content in bytes")
            content, position = binary[position : position + size], position + size
            least = math.prod(shape) * ITEM_BYTES.get(datatype, LENGTH_BYTES)
            if size != least if datatype != BYTES else size < least:  # Triton itself counts the strings of BYTES
                raise _refused(
                    name, f"has {size} bytes for the shape {shown(shape)}", "Send a shape that fits its content"
                )
        else:
            content = _content(name, datatype, shape, fields.get("data"))
        contents.append(content)
        heads.append({"name": name, "datatype": datatype, "shape": shape, "parameters": {BINARY_SIZE: len(content)}})
    if tensors and all(head["shape"][:1] == [0] for head in heads):  # Triton's Python backend never answers these
        raise invalid("The inputs have no rows: each shape begins with 0. Send one row at least.")
    if position != len(binary):
        raise invalid(f"{len(binary) - position} bytes of the body are of no input. Send {BINARY_SIZE} with each.")
    return heads, contents


def refuse_coded(name: object, parameters: Mapping[str, Any]) -> None:
    """Raise Refusal for an input whose content type means that its texts must be decoded."""
    if (kind := parameters.get(CONTENT_TYPE)) in CODED:
        message = f"The input {shown(name)} has the content_type {kind}. Send texts with str, or JSON with hg_json."
        raise invalid(message, CONTENT_TYPE)


def _name(fields: Mapping[str, Any]) -> str:
    name = _typed(fields.get("name"), str, "The name of a tensor")
    if "\0" in name:  # where Triton ends the name
        raise invalid(f"The name of a tensor is {shown(name)}. Send one of the model's.")
    return name  # type: ignore[no-any-return]


def _shape(name: str, shape: Any) -> list[int]:
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise _refused(name, f"has the shape {shown(shape)}", f"Send a list of at most {MOST_DIMENSIONS} sizes")
    if any(type(size) is not int or not 0 <= size <= MOST_SIZE for size in shape):
        raise _refused(name, f"has the shape {shown(shape)}", f"Send sizes from 0 to {MOST_SIZE}")
    return shape


def _content(name: str, datatype: str, shape: Sequence[int], data: Any) -> bytes:
    """Return the bytes of a tensor whose values are JSON: a list, nested or flat."""
    if datatype in NOT_IN_JSON:
        raise _refused(name, f"is of {datatype} and JSON", "Send its values as binary data, or another datatype")
    values = _flat(data) if isinstance(data, list) else []
    if not isinstance(data, list) or len(values) != math.prod(shape):
        has = f"{len(values)} values" if isinstance(data, list) else "no list of values"
        raise _refused(name, f"has {has} in data for the shape {shown(shape)}", "Send as many as its shape says")
    try:
        if datatype != BYTES:
            return _numbers(datatype, values)
        _check_types(values, {str})
        return b"".join(struct.pack("<I", len(item)) + item for item in (value.encode() for value in values))
    except (TypeError, OverflowError, UnicodeError):
        raise _refused(name, f"has values in data that are not of {datatype}", "Send values of its datatype") from None


def _flat(data: list[Any]) -> list[Any]:
    if list not in set(map(type, data)):
        return data
    return [value for each in data for value in (_flat(each) if isinstance(each, list) else (each,))]


def _numbers(datatype: str, values: Sequence[Any]) -> bytes:
    """Encode numbers. Raises TypeError for a type other than the tensor's, OverflowError for integers out of range."""
    dtype = DATA_TYPES[datatype]
    if dtype.kind == "f":
        _check_types(values, {int, float})
        with np.errstate(over="ignore"):  # the result is infinite, as in Triton's own conversion
            return np.array(values, np.float64).astype(dtype).tobytes()
    _check_types(values, {bool} if dtype.kind == "b" else {int})
    if dtype.kind != "b" and values:
        bounds = np.iinfo(dtype.name)
        if min(values) < bounds.min or max(values) > bounds.max:
            raise OverflowError
    return np.array(values, dtype).tobytes()


def _check_types(values: Sequence[Any], types: set[type]) -> None:
    if not set(map(type, values)) <= types:
        raise TypeError


def _output(output: Any) -> dict[str, Any]:
    """Return a requested output as Triton gets it, with `binary_data` as its only parameter.

    For `classification`, Triton 2.51 divides by the number of bytes of a value, which is 0 for texts: a SIGFPE. The
    other parameters that Triton reads concern shared memory. Names that Triton does not read, such as MLServer's
    `content_type`, are left out.
    """
    fields = _typed(output, dict, "An output")
    name = _name(fields)
    parameters = _typed(fields.get("parameters", {}), dict, f"parameters of the output {name!r}")
    if any(key.startswith("shared_memory") for key in parameters):
        raise invalid(f"The output {name!r} is for shared memory, which is closed. Leave that out.")
    if any(key.partition("\0")[0] == "classification" for key in parameters):
        fix = "Leave that out; classifiers return their best labels by the input top_k."
        raise invalid(f"The output {name!r} has the parameter classification, which is closed. {fix}")
    kept = {key: _typed(parameters[key], bool, key) for key in ("binary_data",) if key in parameters}
    return {"name": name, "parameters": kept}


def _parameters(parameters: Any) -> Mapping[str, Any]:
    """Return a request's parameters, which must be strings, numbers or booleans, as Triton accepts them."""
    for name, value in _typed(parameters, dict, "parameters").items():
        is_number = isinstance(value, int) and value in INT64
        if not (isinstance(value, str) or is_number or (isinstance(value, float) and math.isfinite(value))):
            raise invalid(f"The parameter {shown(name)} is {shown(value)}. Send a text, a number, true or false.")
        _check_own(name, value)
    is_plain = parameters.get(CONTENT_TYPE) in PLAIN_CODECS
    return {name: value for name, value in parameters.items() if not (is_plain and name == CONTENT_TYPE)}


def _check_own(name: str, value: Any) -> None:
    """Raise Refusal for an unknown parameter with Triton's prefix, or for one of Triton's with the wrong type."""
    name = name.partition("\0")[0]  # where Triton ends the name
    types = TRITON_PARAMETERS.get(name)
    if types is None and name.startswith(TRITON_PREFIX):
        raise invalid(f"Triton has no parameter {shown(name)}. Leave it out.")
    if types is not None and (type(value) not in types or (type(value) is int and value < 0)):
        words = {bool: "true or false", int: "a whole number from 0", str: "a text"}
        wanted = " or ".join(words[kind] for kind in types)
        raise invalid(f"The parameter {name} is {shown(value)}. Send {wanted}.")


def _typed(value: Any, kind: type, what: str) -> Any:
    """Return `value` if its type is exactly `kind`: a boolean is not an integer. Raises Refusal."""
    if type(value) is not kind:
        wanted = {str: "a string", dict: "an object", list: "a list", bool: "true or false", int: "an integer"}[kind]
        raise invalid(f"{what} is {shown(value)}. Send {wanted}.")
    return value


def _refused(name: str, what: str, fix: str) -> Refusal:
    return invalid(f"The input {shown(name)} {what}. {fix}.")
