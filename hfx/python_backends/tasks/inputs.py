"""Reads the inputs of the postprocessing steps from a request, and refuses invalid inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DIFFERS_BETWEEN_ROWS, IS_BELOW_ONE, IS_EMPTY, IS_MISSING, InvalidInput

Tensors = Mapping[str, NDArray[Any]]

TOP_K = "top_k"


def read_request(
    request: Any, required: Collection[str], optional: Collection[str]
) -> dict[str, NDArray[Any]] | InvalidInput:
    """Return a Triton request's `required` and `optional` tensors by name, or an error if a required one is missing.

    An optional tensor of zeros counts as left out: NAME_tokenize makes zeros for a setting that a caller left out.
    """
    arrays = dict[str, NDArray[Any]]()
    for tensor in request.inputs():
        name = tensor.name()
        if name in required:
            arrays.setdefault(name, tensor.as_numpy())
        elif name in optional and (array := tensor.as_numpy()).any():
            arrays[name] = array
    missing = next((name for name in required if name not in arrays), None)
    return arrays if missing is None else InvalidInput(IS_MISSING % missing)


def top_k(tensors: Tensors, default: int | None, available: int) -> int:
    """Return how many answers each row of the request wants, at most `available`; a `default` of None means all."""
    return min(agreed(TOP_K, tensors, available if default is None else default), available)


def agreed(name: str, tensors: Tensors, default: int) -> int:
    """Return the number `name` [rows, 1], at least 1; `default` if it is left out.

    The rows of a request share the shape of its outputs, so the rows must agree. Raises InvalidInput.
    """
    if name not in tensors:
        return default
    values = tensors[name]
    if values.size == 0:
        raise InvalidInput(IS_EMPTY % name)
    count = int(values.flat[0])
    if np.any(values != count):
        raise InvalidInput(DIFFERS_BETWEEN_ROWS % name)
    if count < 1:
        raise InvalidInput(IS_BELOW_ONE % (name, count))
    return count


def head(raw: bytes, characters: int) -> str:
    """Return at least the first `characters` characters of a UTF-8 text; megabytes behind them are not decoded."""
    return raw[: 4 * characters].decode("utf-8", "ignore")


def strings(values: list[list[str]]) -> NDArray[np.object_]:
    """Return a STRING tensor with the shape of `values`."""
    return np.array([[value.encode() for value in row] for row in values], dtype=np.object_)
