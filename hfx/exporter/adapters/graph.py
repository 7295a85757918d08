"""Give an encoder's graph the operators that apply the adapters in a pool, and write it with the pool's default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hfx.exporter.adapters.pool import Layout, Rooms, parts_of
from hfx.exporter.encoder.graph.linears import FoundLinear, GraphView
from hfx.exporter.encoder.graph.ragged import PADDED
from hfx.exporter.graph import operators
from hfx.exporter.quantize.encoder import INT8, LOW_RANK, RowWise
from hfx.exporter.quantize.products import path_of
from hfx.names import INPUT_IDS
from hfx.python_backends.onnxruntime.config import ADAPTER_FILE

ADAPTER, ADAPTERS = "adapter", "adapters"  # the net's inputs: the slot of each row, and the pool


@dataclass
class AdaptedProducts:
    """The products of a graph that have adapters; their places in the pool are added to `layout`.

    The operators are those for the layout's type of weights. Products that can't have adapters stay as they are, and
    become `refused` layers of the layout.
    """

    rooms: Rooms
    layout: Layout
    _paths: dict[str, str] = field(default_factory=dict)  # by weight

    def nodes(self, rows: RowWise, parts: Sequence[FoundLinear], out: str) -> list[onnx.NodeProto]:
        """Return the nodes of one linear, or of several that read one tensor; empty if none of them is adapted."""
        first, paths = parts[0], [self._path(rows.view, part) for part in parts]
        if not any(map(self._is_adapted, paths)):
            return []
        texts = rows.view.shapes.get(PADDED + INPUT_IDS, ())[:1]
        if not texts or rows.view.shapes.get(first.x, ())[:1] != texts:
            return self._refuse(paths, "is computed once for all texts of a batch")
        if first.factor:
            return rows.gated(parts, out)
        sizes = [rows.weights[part.weight].dims[:: 1 if part.transposed else -1] for part in parts]
        inputs, suffix = int(sizes[0][1]), operators.SUFFIXES[first.activation] if first.activation else ""
        if paths[0] in self.rooms.heads:
            return self._head(rows, first, paths[0], inputs, suffix, out)
        wide = [(path, int(size[0])) for path, size in zip(paths, sizes, strict=True)]
        if not (attributes := parts_of(self.layout, self.rooms, wide, inputs)):
            return self._refuse(paths, "is read by several attentions of the graph")
        base = out + ".base"
        plain = [replace(part, activation=None, residual="") for part in parts]
        added = [first.residual] if first.residual else []
        read = [first.x, base, *added, ADAPTER, ADAPTERS]
        op = self._operator(LOW_RANK + ("Add" if added else suffix))
        return [rows.plain(plain, base), rows.node(op, read, out, **attributes)]

    def _refuse(self, paths: Sequence[str], reason: str) -> list[onnx.NodeProto]:
        self.layout.refused |= {path: reason for path in paths if self._is_adapted(path)}
        return []

    def _is_adapted(self, path: str) -> bool:
        return path in self.rooms.ranks or path in self.rooms.heads

    def _path(self, view: GraphView, linear: FoundLinear) -> str:
        """Return the path of a linear's module. A tracer numbers the further calls of a module (`query_1`)."""
        path = path_of(view, linear)
        if self._is_adapted(path):
            self._paths.setdefault(linear.weight, path)
            return path
        called = self._paths.get(linear.weight, path)
        return called if _without_numbers(called) == _without_numbers(path) else path

    def _head(
        self, rows: RowWise, linear: FoundLinear, path: str, inputs: int, suffix: str, out: str
    ) -> list[onnx.NodeProto]:
        """Return the nodes of a layer of the head: its weights are the adapter's own."""
        place = self.layout.add(path, inputs, self.rooms.heads[path])
        made = out + ".sum" if linear.residual else out
        sizes = {"in_features": inputs, "out_features": place.outputs, "offset": place.offset}
        node = rows.node(self._operator("AdapterLinear" + suffix), [linear.x, ADAPTER, ADAPTERS], made, **sizes)
        added = [helper.make_node("Add", [made, linear.residual], [out], name=out)] if linear.residual else []
        return [node, *added]

    def _operator(self, name: str) -> str:
        return INT8 + name if self.layout.int8 else name


def _without_numbers(path: str) -> list[str]:
    return [re.sub(r"_\d+$", "", part) for part in path.split(".")]


def add_inputs(graph: onnx.GraphProto, stride: int) -> None:
    """Let the graph take the slot of each row, or one for all rows, and the pool [slots, stride]."""
    graph.input.append(helper.make_tensor_value_info(ADAPTER, TensorProto.INT32, ["adapter_rows"]))
    graph.input.append(helper.make_tensor_value_info(ADAPTERS, TensorProto.FLOAT, ["slots", stride]))


def add_pool(path: Path, slot: NDArray[np.float32], outputs: int) -> None:
    """Let the graph in the file `path` read its weights from the file ADAPTER_FILE, unless its caller gives a pool.

    `slot` [stride] are the weights. The graph's output has room for `outputs` numbers in its last dimension (0: as it
    is).
    """
    model = onnx.load(path, load_external_data=False)
    graph, folder = model.graph, path.parent
    slot.astype("<f4").tofile(folder / ADAPTER_FILE)
    pool = onnx.TensorProto(name=ADAPTERS, data_type=TensorProto.FLOAT, dims=[1, slot.size])
    pool.data_location = TensorProto.EXTERNAL
    for key, value in {"location": ADAPTER_FILE, "offset": 0, "length": 4 * slot.size}.items():
        pool.external_data.add(key=key, value=str(value))
    graph.initializer.extend([numpy_helper.from_array(np.zeros(1, np.int32), ADAPTER), pool])
    if outputs:
        graph.output[0].type.tensor_type.shape.dim[-1].dim_value = outputs
    path.write_bytes(model.SerializeToString(deterministic=True))
