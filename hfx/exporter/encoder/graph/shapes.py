"""Find the shapes and the constant indices in a traced graph by running it without its weights.

A tracer writes many sizes as computations, which ONNX's shape inference does not follow: positions, for example, are a
slice of a table, as long as the text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from hfx.names import ATTENTION_MASK, ITEM_SHAPE

LARGEST_CONSTANT = 1024  # bytes; the values of larger constants, as of weights, are not needed to find shapes
MOST_INTEGERS = 8  # the values of tensors with at most this many integers are kept
# The sizes of two batches: the number of rows, of sequences in a row (for models whose rows have several), and of
# tokens in a sequence. 16 tokens fit every model.
BATCHES = ((2, 2, 8), (3, 5, 16))

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Measured:
    """The shape of each tensor, with a symbol for each size that depends on the batch. Equal symbols are equal sizes.

    `integers` has the values of the tensors with few integers, if they are the same in both batches.
    """

    shapes: Mapping[str, Shape]
    integers: Mapping[str, tuple[int, ...]]


def measure(model: onnx.ModelProto) -> Measured:
    """Run the main graph of `model` on two batches, and return what was measured. Large constants are zeros."""
    small = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer if is_small(each)}
    feeds = [batch_of(model.graph, *batch) for batch in BATCHES]
    one, other = (small | feed | run_without_weights(model, feed) for feed in feeds)
    shapes = {
        name: tuple(a if a == b else f"{a}, {b}" for a, b in zip(value.shape, other[name].shape, strict=True))
        for name, value in one.items()
    }
    few = {name: value for name, value in one.items() if value.dtype.kind == "i" and value.size <= MOST_INTEGERS}
    fixed = {name: tuple(value.ravel().tolist()) for name, value in few.items() if np.array_equal(value, other[name])}
    return Measured(shapes, fixed)


def run_without_weights(
    model: onnx.ModelProto, feed: Mapping[str, NDArray[np.generic]], wanted: Sequence[str] = ()
) -> dict[str, NDArray[np.generic]]:
    """Run the main graph on `feed` with zeros for large constants; return the `wanted` results, or all."""
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

    graph = onnx.GraphProto(name=model.graph.name, node=model.graph.node, input=model.graph.input)
    fed, large = dict(feed), list[onnx.TensorProto]()
    for each in model.graph.initializer:
        if is_small(each):
            graph.initializer.append(each)
        else:
            large.append(each)
            graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, [*each.dims]))
    # Zeros that are only read take no memory, but a page fault a page: all constants share those of the largest.
    types = [helper.tensor_dtype_to_np_dtype(each.data_type) for each in large]
    sizes = [math.prod(each.dims) * dtype.itemsize for each, dtype in zip(large, types, strict=True)]
    zeros = np.zeros(max(sizes, default=0), np.uint8)
    for each, dtype, size in zip(large, types, sizes, strict=True):
        fed[each.name] = zeros[:size].view(dtype).reshape([*each.dims])
    made = [*wanted] or [name for node in graph.node for name in node.output if name]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    skeleton = onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions, graph=graph
    )
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = InferenceSession(skeleton.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(made, session.run(made, fed), strict=True))


def is_small(tensor: onnx.TensorProto) -> bool:
    """Return whether run_without_weights() keeps the values of a constant."""
    return math.prod(tensor.dims) <= LARGEST_CONSTANT and bool(tensor.ByteSize() <= LARGEST_CONSTANT)


def batch_of(graph: onnx.GraphProto, rows: int, sequences: int, width: int) -> dict[str, NDArray[np.generic]]:
    """Return the inputs of a batch of these sizes; all tokens are real and have the id 0."""
    item = next((value for value in graph.input if value.name == ITEM_SHAPE), None)
    of_sequences = item is not None and item.type.tensor_type.shape.dim[1].dim_value == 2
    shape = [sequences, width] if of_sequences else [width]
    sizes = {"rows": rows, "tokens": rows * int(np.prod(shape)), "labels": sequences}
    feed: dict[str, NDArray[np.generic]] = {}
    for value in graph.input:
        tensor = value.type.tensor_type
        dims = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        fill = 1 if value.name == ATTENTION_MASK else 0
        feed[value.name] = np.full(dims, fill, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if item is not None:
        feed[ITEM_SHAPE] = np.array([shape] * rows, np.int32)
    return feed
