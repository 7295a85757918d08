"""Builds ONNX graphs, with small constants inside the graph and weights in a file that graphs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hfx.errors import CheckpointUnsupported
from hfx.exporter.graph.blocks import Parameter

ALIGNMENT = 64  # a cache line, as vector instructions read mapped tensors

Pieces = Callable[[], Iterable[NDArray[Any]]]
OPSET, IR_VERSION = 21, 10
CONTRIB = "com.microsoft"
FloatType = type[np.floating[Any]]
Value = str  # the name of a tensor in the graph
Shape = Sequence[int | str]


class WeightFile:
    """An open file of weights; `add` writes a tensor when its name is first used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("wb")
        self._known: dict[str, onnx.TensorProto] = {}

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, name: str, dtype: type[np.generic], shape: tuple[int, ...], pieces: Pieces) -> onnx.TensorProto:
        """Return the reference to tensor `name`; write it from `pieces()`, in order, if it isn't in the file yet."""
        if name not in self._known:
            self._known[name] = self._write(name, np.dtype(dtype), shape, pieces)
        return self._known[name]

    def _write(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], pieces: Pieces) -> onnx.TensorProto:
        offset = self._file.tell()
        padding = -offset % ALIGNMENT
        self._file.write(b"\0" * padding)
        offset += padding
        for piece in pieces():
            self._file.write(np.ascontiguousarray(piece, dtype).data)
        length = self._file.tell() - offset
        if length != dtype.itemsize * int(np.prod(shape)):
            raise ValueError(f"{name} has {length} bytes, which are not {shape} of {dtype}")
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(dtype), dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._path.name), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        return tensor


class GraphWriter:
    """Collects a graph whose floats are `compute` (float32 or float16); `save` writes and checks it.

    `weights` is None for a graph without weights. If `native`, norms and float products are operators of hfx/native.
    """

    def __init__(
        self, name: str, weights: WeightFile | None, compute: FloatType = np.float32, native: bool = False
    ) -> None:
        self.name, self.compute, self.native = name, compute, native
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: dict[str, onnx.ValueInfoProto] = {}
        self._outputs: list[onnx.ValueInfoProto] = []
        self._functions: dict[str, onnx.FunctionProto] = {}

    def input(self, name: str, dtype: type[np.generic], shape: Shape) -> Value:
        """Add an input to the graph, unless it has the input already, and return its name."""
        self._inputs.setdefault(name, _value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: type[np.generic], shape: Shape, source: Value) -> None:
        """Make `source`, an output of a node, the graph's output `name`."""
        for node in self._nodes:  # renamed, because an Identity node would copy it
            for names in (node.input, node.output):
                names[:] = [name if value == source else value for value in names]
        self._outputs.append(_value_info(name, dtype, shape))

    def unique(self, name: str) -> Value:
        """Return a name for a tensor that no other tensor has."""
        return f"{name}.{len(self._nodes)}"

    def node(self, op: str, inputs: Sequence[Value | None], domain: str = "", **attributes: Any) -> Value:
        """Append a node with one output; None stands for an optional input that is left out."""
        return self.nodes(op, inputs, [self.unique(op)], domain, **attributes)[0]

    def nodes(
        self, op: str, inputs: Sequence[Value | None], outputs: Sequence[Value], domain: str = "", **attributes: Any
    ) -> Sequence[Value]:
        """Append a node whose outputs have these names; an empty name leaves an output out."""
        given = [value or "" for value in inputs]
        while given and not given[-1]:
            given.pop()
        node = helper.make_node(op, given, list(outputs), name=self.unique(op), domain=domain, **attributes)
        self._nodes.append(node)
        return outputs

    def defined(self, op: str, define: Callable[[str], onnx.FunctionProto]) -> str:
        """Add the definition of `op` to the file, if it isn't there yet, with `define`; return `op`."""
        if op not in self._functions:
            self._functions[op] = define(op)
        return op

    def const(self, value: float | Sequence[int] | NDArray[Any], dtype: type[np.generic]) -> Value:
        """Return a small constant inside the graph; equal constants are shared."""
        array = np.asarray(value, dtype)  # np.ascontiguousarray would make a scalar 1-D
        name = f"const.{array.dtype}.{'x'.join(map(str, array.shape))}.{array.tobytes().hex()}"
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str, dtype: type[np.generic], shape: tuple[int, ...], pieces: Pieces) -> Value:
        """Return a tensor of the weight file; the first graph that uses it writes it there."""
        if self._weights is None:
            raise ValueError(f"the graph {self.name} has no weight file for {name}")
        self._initializers[name] = self._weights.add(name, dtype, shape, pieces)
        return name

    def vector(self, parameter: Parameter, dtype: type[np.generic] | None = None) -> Value:
        """Return an unquantized parameter, such as a bias, a norm's weight or a table of positions.

        Its type is `dtype`, by default the graph's float type.
        """
        kind = dtype or self.compute
        suffix = "" if kind is np.float32 else f".{np.dtype(kind).name}"
        return self.weight(parameter.name + suffix, kind, parameter.shape, parameter.chunks)

    def zeros(self, count: int) -> Value:
        """Return a bias of zeros in float32."""
        return self.weight(f"zeros.{count}", np.float32, (count,), lambda: [np.zeros(count, np.float32)])

    def cast(self, value: Value, dtype: type[np.generic]) -> Value:
        """Convert `value` to another type."""
        return self.node("Cast", [value], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def save(self, path: Path) -> None:
        """Write the graph to `path` and check it. Raises CheckpointUnsupported if onnx.checker refuses it."""
        graph = helper.make_graph(
            self._nodes, self.name, list(self._inputs.values()), self._outputs, list(self._initializers.values())
        )
        domains = sorted({CONTRIB, *(node.domain for node in self._nodes if node.domain)})
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
        model = helper.make_model(graph, opset_imports=opsets, functions=list(self._functions.values()))
        model.ir_version = IR_VERSION
        model.producer_name = "hfx"
        path.write_bytes(model.SerializeToString())
        check(path)


def check(path: Path) -> None:
    """Raise CheckpointUnsupported if onnx.checker refuses the graph in `path`."""
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise CheckpointUnsupported(f"{path.name} is not valid ONNX: {error}", "Please report this.") from error


def _value_info(name: str, dtype: type[np.generic], shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
