"""Give an encoder graph flat inputs, so that requests of any length share a batch.

Triton's dynamic batcher joins requests of different shapes only for inputs that allow ragged batches. NVIDIA's C++
onnxruntime backend passes such inputs as one flat tensor, beside an input (`item_shape`) that gives each row's shape.
This module rewrites a graph on padded tensors `[rows, width]` into a graph on flat tensors `[tokens]`. It also has the
helpers with which other modules add nodes to a traced graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from hfx.names import ATTENTION_MASK, INPUT_IDS, ITEM_SHAPE

PREFIX = "hfx.ragged."
REAL = PREFIX + "real"  # [sequences, widest] bool: which padded positions stand for a token of the flat tensors
OUTPUT, SPLIT = PREFIX + "output.", ".split"  # the start and end of the name of a node that splits an output by rows
PADDED = PREFIX + "input."  # the name of the padded form of an input begins with this, and ends with the input's name


class NodeList:
    """Collects new nodes, in order, and their constants. All their names begin with `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def const(self, name: str, value: ArrayLike) -> str:
        """Make a constant, unless there is one of this name, and return its full name."""
        full = self.prefix + name
        if full not in self.constants:
            self.constants[full] = numpy_helper.from_array(np.asarray(value), full)
        return full

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Append a node, which has the name of its output, and return this name."""
        name = self.prefix + output
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name


def assign(items: Any, values: Iterable[Any]) -> None:
    """Replace the contents of a repeated field of a graph by `values`."""
    kept = list(values)
    del items[:]
    items.extend(kept)


def rename(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    """Rename the tensor `old` to `new` in all `nodes`."""
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _sequence_widths(front: NodeList, item_rank: int) -> tuple[str, str, str]:
    """Return the lengths of all sequences `[rows x sequences]`, the largest width, and the largest number of sequences.

    With `item_rank` 2, a row holds `sequences` sequences of `width` tokens. Rows with fewer sequences than the largest
    row are filled with sequences of length 0, so that the result is rectangular: [rows, sequences, width]. With
    `item_rank` 1, the number of sequences is empty.
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


def _gather_plan(front: NodeList, lengths: str, starts: str, widest: str) -> tuple[str, str]:
    """Return the index of each padded position in the flat tensor, and whether it is real: both [sequences, widest]."""
    column = front.add("Unsqueeze", [starts, front.const("axis1", [1])], "start_column")
    length_column = front.add("Unsqueeze", [lengths, front.const("axis1", [1])], "length_column")
    order = front.add("Range", [front.const("zero", 0), widest, front.const("one", 1)], "order")
    real = front.add("Less", [order, length_column], "real")
    # A padding position reads index 0, so it is never out of bounds, and is then overwritten.
    wanted = front.add("Add", [column, order], "wanted")
    index = front.add("Where", [real, wanted, front.const("zero", 0)], "index")
    return index, real


def flatten_inputs(
    model: onnx.ModelProto, item_rank: int, padding: Mapping[str, int], table: ArrayLike | None = None
) -> None:
    """Rewrite `model` in place: each input in `padding`, `[rows, width]` int64, becomes flat `[tokens]` int32.

    Other inputs have a value for each row, and stay as they are. `padding` maps each input name to the value of its
    padding positions. `item_shape` `[rows, item_rank]` int32 becomes a further input: a row's width (rank 1), or its
    number of sequences and their width (rank 2). With rank 2, the original graph sees `[rows x sequences, width]`, and
    the first axis of each output is split into `[rows, sequences]`. With a `table` [vocabulary], the original graph
    sees only the rows of documents. The output for a query, whose mask is 2, has the table's number at the place of
    each of its tokens.
    """
    graph = model.graph
    front = NodeList(PREFIX)
    lengths, widest, most = _sequence_widths(front, item_rank)
    ends = front.add("CumSum", [lengths, front.const("zero", 0)], "ends")
    starts = front.add("Sub", [ends, lengths], "starts")
    computed = (lengths, starts, widest) if table is None else _documents(front, lengths, starts)
    index, real = _gather_plan(front, *computed)
    others = [value for value in graph.input if value.name not in padding]
    if others and item_rank == 2:  # the original graph sees the value of a row once for each of its sequences
        size = front.add("Size", [lengths], "size")
        order = front.add("Range", [front.const("zero", 0), size, front.const("one", 1)], "order_of_sequences")
        owners = front.add("Div", [order, most], "owners")
        for value in others:
            rename(graph.node, value.name, front.add("Gather", [value.name, owners], "input." + value.name, axis=0))
    for name in padding:
        gathered = front.add("Gather", [name, index], name + ".gathered", axis=0)
        fill = front.const(name + ".padding", np.int32(padding[name]))
        padded = front.add("Where", [real, gathered, fill], name + ".padded")
        rename(graph.node, name, front.add("Cast", [padded], "input." + name, to=TensorProto.INT64))
    back = _split_rows(graph, front, most) if item_rank == 2 else []
    if table is not None:
        back = _look_up(graph, np.asarray(table, np.float32), lengths, starts, widest)
    flat = [helper.make_tensor_value_info(name, TensorProto.INT32, ["tokens"]) for name in padding]
    assign(graph.input, [*flat, *others])
    graph.input.append(helper.make_tensor_value_info(ITEM_SHAPE, TensorProto.INT32, ["rows", item_rank]))
    assign(graph.node, [*front.nodes, *graph.node, *back])
    graph.initializer.extend(front.constants.values())
    del graph.value_info[:]  # shapes of the padded graph: stale


def _documents(front: NodeList, lengths: str, starts: str) -> tuple[str, str, str]:
    """Return the lengths and starts of the rows that are documents, and their largest width.

    A batch without documents has one token of the first row instead: ONNX Runtime does not reshape an empty tensor.
    """
    zero, one = front.const("zero", 0), front.const("one", 1)
    first = front.add("Gather", [ATTENTION_MASK, starts], "first_mask")
    query = front.add("Equal", [first, front.const("looked_up", np.int32(2))], "is_query")  # [rows]
    document = front.add("Not", [query], "is_document")
    least = front.add("ReduceMin", [front.add("Cast", [query], "queries", to=TensorProto.INT64)], "least", keepdims=0)
    is_first = front.add("Equal", [starts, zero], "is_first")
    stand_in = front.add("And", [is_first, front.add("Equal", [least, one], "has_none")], "stand_in")
    places = front.add("NonZero", [front.add("Or", [document, stand_in], "is_computed")], "places")
    rows = front.add("Squeeze", [places, front.const("axis0", [0])], "documents")
    widths = front.add("Where", [document, lengths, one], "document_widths")
    widest = front.add("ReduceMax", [widths], "widest_document", keepdims=0)
    own = front.add("Gather", [widths, rows], "document_lengths")
    return own, front.add("Gather", [starts, rows], "document_starts"), widest


def _look_up(
    graph: onnx.GraphProto, table: NDArray[np.float32], lengths: str, starts: str, widest: str
) -> list[onnx.NodeProto]:
    """Return nodes that make the output of all rows from the output of documents and from `table`."""
    back, (value,), size = NodeList(PREFIX + "queries."), graph.output, len(table)
    inner = OUTPUT + value.name
    rename(graph.node, value.name, inner)
    counted = back.add("Cast", [PREFIX + "is_document"], "counted", to=TensorProto.INT64)
    number = back.add("CumSum", [counted, back.const("zero", 0)], "number")
    at = back.add("Mul", [number, counted], "at")  # 0: a row of zeros
    with_zeros = back.add("Concat", [back.const("zeros", np.zeros((1, size), np.float32)), inner], "with_zeros", axis=0)
    rows = back.add("Gather", [with_zeros, at], "rows")
    index, real = _gather_plan(back, lengths, starts, widest)
    ids, mask = (back.add("Gather", [name, index], name) for name in (INPUT_IDS, ATTENTION_MASK))
    is_two = back.add("Equal", [mask, back.const("looked_up", np.int32(2))], "is_two")
    is_looked_up = back.add("And", [real, is_two], "is_looked_up")
    place = back.add("Where", [is_looked_up, ids, back.const("nowhere", np.int32(size))], "place")
    number = back.add("Gather", [back.const("table", np.append(table, np.float32(0))), place], "numbers")
    wide = back.add("Pad", [rows, back.const("column", [0, 0, 0, 1])], "wide")  # the new column takes "nowhere"
    made = back.add("ScatterElements", [wide, place, number], "made", axis=1)
    back.add("Slice", [made, *(back.const(*each) for each in (("from", [0]), ("to", [size]), ("axis1", [1])))], "all")
    back.nodes[-1].output[0] = value.name
    graph.initializer.extend(back.constants.values())
    return back.nodes


def _split_rows(graph: onnx.GraphProto, front: NodeList, most: str) -> list[onnx.NodeProto]:
    """Return nodes that turn each output `[rows x sequences, ...]` into `[rows, sequences, ...]`."""
    rows = front.add("Shape", [ITEM_SHAPE], "rows", start=0, end=1)
    lead = front.add("Unsqueeze", [most, front.const("axis0", [0])], "most_1d")
    nodes: list[onnx.NodeProto] = []
    for value in graph.output:
        inner = OUTPUT + value.name
        rename(graph.node, value.name, inner)
        tail, target = inner + ".tail", inner + ".shape"
        nodes.append(helper.make_node("Shape", [inner], [tail], name=tail, start=1))
        nodes.append(helper.make_node("Concat", [rows, lead, tail], [target], name=target, axis=0))
        nodes.append(helper.make_node("Reshape", [inner, target], [value.name], name=inner + SPLIT))
        dims = list(value.type.tensor_type.shape.dim)[1:]
        shape = ["rows", "sequences", *(d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims)]
        value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    return nodes
