"""The flat front of an encoder graph: requests of any length in one batch.

Triton's dynamic batcher joins requests of different shapes only for inputs that allow ragged batches, and NVIDIA's C++
onnxruntime backend hands those over as one flat tensor, beside an input (`item_shape`) that gives each row's shape.
This module rewrites a graph on padded tensors `[rows, width]` into one on flat tensors `[tokens]`, and has what others
add nodes to a traced graph with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from hfx.names import ITEM_SHAPE

PREFIX = "hfx.ragged."
REAL = PREFIX + "real"  # [sequences, widest] bool: which padded positions stand for a token of the flat tensors
PADDED = PREFIX + "input."  # what the padded form of an input is called, with its name behind it


class NodeList:
    """Nodes and constants in the making, in order; their names begin with `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def const(self, name: str, value: ArrayLike) -> str:
        """The name of a constant, made once."""
        full = self.prefix + name
        if full not in self.constants:
            self.constants[full] = numpy_helper.from_array(np.asarray(value), full)
        return full

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Append a node, which has the name of its output, and return that."""
        name = self.prefix + output
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name


def assign(items: Any, values: Iterable[Any]) -> None:
    """Make `values` all that a repeated field of a graph has."""
    kept = list(values)
    del items[:]
    items.extend(kept)


def rename(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    """Give the tensor `old` another name in all `nodes`."""
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _sequence_widths(front: NodeList, item_rank: int) -> tuple[str, str, str]:
    """Lengths of all sequences `[rows x sequences]`, the largest width, and the padded output shape's lead.

    With item_rank 2 a row holds `sequences` sequences of `width` tokens; rows with fewer sequences than the largest
    are filled with sequences of length 0, so that the result is rectangular: [rows, sequences, width].
    """
    shape = front.add("Cast", [ITEM_SHAPE], "shape", to=TensorProto.INT64)
    width = front.add("Gather", [shape, front.const("last", -1)], "row_width", axis=1)  # [rows]
    widest = front.add("ReduceMax", [width], "widest", keepdims=0)
    if item_rank == 1:
        return width, widest, ""
    count = front.add("Gather", [shape, front.const("first", 0)], "row_count", axis=1)
    most = front.add("ReduceMax", [count], "most", keepdims=0)
    order = front.add("Range", [front.const("zero", 0), most, front.const("one", 1)], "sequence_order")
    count_column = front.add("Unsqueeze", [count, front.const("axis1", [1])], "count_column")
    present = front.add("Less", [order, count_column], "present")  # [rows, most]
    width_column = front.add("Unsqueeze", [width, front.const("axis1", [1])], "width_column")
    lengths = front.add("Where", [present, width_column, front.const("zero", 0)], "lengths_2d")
    flat = front.add("Reshape", [lengths, front.const("flat", [-1])], "lengths")
    return flat, widest, most


def _gather_plan(front: NodeList, lengths: str, widest: str) -> tuple[str, str]:
    """Where each padded position reads in the flat tensor, and whether it is a real one: both [sequences, widest]."""
    ends = front.add("CumSum", [lengths, front.const("zero", 0)], "ends")
    starts = front.add("Sub", [ends, lengths], "starts")
    column = front.add("Unsqueeze", [starts, front.const("axis1", [1])], "start_column")
    length_column = front.add("Unsqueeze", [lengths, front.const("axis1", [1])], "length_column")
    order = front.add("Range", [front.const("zero", 0), widest, front.const("one", 1)], "order")
    real = front.add("Less", [order, length_column], "real")
    # A padding position reads index 0 and is then overwritten: never out of bounds.
    wanted = front.add("Add", [column, order], "wanted")
    index = front.add("Where", [real, wanted, front.const("zero", 0)], "index")
    return index, real


def flatten_inputs(model: onnx.ModelProto, item_rank: int, padding: Mapping[str, int]) -> None:
    """Rewrite `model` in place: each input in `padding`, `[rows, width]` int64, becomes flat `[tokens]` int32.

    `padding` maps input name to the value of its padding positions. `item_shape` `[rows, item_rank]` int32 becomes
    a further input: a row's width (rank 1), or its number of sequences and their width (rank 2). With rank 2 the
    original graph sees `[rows x sequences, width]`, and each output's first axis is split into `[rows, sequences]`.
    """
    graph = model.graph
    front = NodeList(PREFIX)
    lengths, widest, most = _sequence_widths(front, item_rank)
    index, real = _gather_plan(front, lengths, widest)
    for value in graph.input:
        name = value.name
        gathered = front.add("Gather", [name, index], name + ".gathered", axis=0)
        fill = front.const(name + ".padding", np.int32(padding[name]))
        padded = front.add("Where", [real, gathered, fill], name + ".padded")
        rename(graph.node, name, front.add("Cast", [padded], "input." + name, to=TensorProto.INT64))
    back = _split_rows(graph, front, most) if item_rank == 2 else []
    names = [value.name for value in graph.input]
    assign(graph.input, [helper.make_tensor_value_info(name, TensorProto.INT32, ["tokens"]) for name in names])
    graph.input.append(helper.make_tensor_value_info(ITEM_SHAPE, TensorProto.INT32, ["rows", item_rank]))
    assign(graph.node, [*front.nodes, *graph.node, *back])
    graph.initializer.extend(front.constants.values())
    del graph.value_info[:]  # shapes of the padded graph: stale


def _split_rows(graph: onnx.GraphProto, front: NodeList, most: str) -> list[onnx.NodeProto]:
    """Nodes that turn each output `[rows x sequences, ...]` into `[rows, sequences, ...]`."""
    rows = front.add("Shape", [ITEM_SHAPE], "rows", start=0, end=1)
    lead = front.add("Unsqueeze", [most, front.const("axis0", [0])], "most_1d")
    nodes: list[onnx.NodeProto] = []
    for value in graph.output:
        inner = PREFIX + "output." + value.name
        rename(graph.node, value.name, inner)
        tail, target = inner + ".tail", inner + ".shape"
        nodes.append(helper.make_node("Shape", [inner], [tail], name=tail, start=1))
        nodes.append(helper.make_node("Concat", [rows, lead, tail], [target], name=target, axis=0))
        nodes.append(helper.make_node("Reshape", [inner, target], [value.name], name=inner + ".split"))
        dims = list(value.type.tensor_type.shape.dim)[1:]
        shape = ["rows", "sequences", *(d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims)]
        value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    return nodes
