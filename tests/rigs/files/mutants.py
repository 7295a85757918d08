"""Faults of an exported graph: each is a function that changes an ONNX model in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

Fault = Callable[[], None]
PRODUCTS = ("MatMul", "Gemm", "Int8Linear", "FloatLinear", "MatMulNBits")
OTHER_TABLES = ("position", "rotary", "token_type")
MASKED = -1e4  # scores below this one hide a token


def faults(model: onnx.ModelProto, ids: list[int]) -> Iterator[tuple[str, Fault]]:
    """Yield the name of each fault and the function that puts it into `model`.

    There are up to two of each sort: those that concern the first place in the graph, and those of the last. The rows
    of `ids` in the table of words are swapped.
    """
    tensors = {each.name: each for each in model.graph.initializer}
    readers = [(node, name) for node in model.graph.node for name in node.input if name in tensors]
    products = [
        tensors[name]
        for node, name in readers
        if node.op_type.startswith(PRODUCTS)
        and (name.endswith(".scale") or (len(tensors[name].dims) == 2 and tensors[name].data_type == TensorProto.FLOAT))
    ]
    for place, weight in _ends(products):
        yield f"sign of the {place} product", _changing(weight, lambda values: -values)
        yield f"scale of the {place} product", _changing(weight, lambda values: values * 1.5)
    biases = [
        tensors[name]
        for node, name in readers
        if len(tensors[name].dims) == 1 and tensors[name].dims[0] > 1 and np.any(numpy_helper.to_array(tensors[name]))
        if tensors[name].data_type == TensorProto.FLOAT and (node.op_type == "Add" or name == node.input[-1])
    ]
    for place, bias in _ends(biases):
        yield f"no {place} bias", _changing(bias, np.zeros_like)
    tables = [tensors[name] for node, name in readers if node.op_type == "Gather" and len(tensors[name].dims) == 2]
    of_words = [
        each for each in tables if each.dims[0] > max(ids) and not any(part in each.name for part in OTHER_TABLES)
    ]
    words = max(of_words, key=lambda each: each.dims[0], default=None)
    if words is not None:
        yield "swapped rows of words", _changing(words, lambda values: _swapped(values, ids))
    for table in tables:
        if table is not words and table.dims[0] > 2:
            yield f"shifted rows of {table.name}", _changing(table, lambda values: np.roll(values, 1, axis=0))
    masks = [
        each
        for each in tensors.values()
        if each.data_type == TensorProto.FLOAT and not each.dims and numpy_helper.to_array(each) < MASKED
    ]
    for place, mask in _ends(masks):
        yield f"padding that is read, {place}", _changing(mask, np.zeros_like)


def _ends(tensors: list[TensorProto]) -> Iterator[tuple[str, TensorProto]]:
    if tensors:
        yield "first", tensors[0]
    if len(tensors) > 1:
        yield "last", tensors[-1]


def _changing(tensor: TensorProto, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Fault:
    def put() -> None:
        values = change(numpy_helper.to_array(tensor).copy())
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    return put


def _swapped(values: NDArray[np.float32], ids: list[int]) -> NDArray[np.float32]:
    values[ids] = values[ids[::-1]]
    return values
