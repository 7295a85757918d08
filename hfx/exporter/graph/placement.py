"""Predicts which nodes of a graph ONNX Runtime places on a GPU, and what prevents their capture as a CUDA graph.

ONNX Runtime refuses the capture of a graph with a subgraph (If, Loop), and of a graph in which it had to insert a copy
between the memories of host and device. A node computes on the CPU if there is no CUDA kernel for it, or if it only
needs values in host memory, such as the output of Shape. Some CUDA kernels read an input in host memory, such as the
shape of Reshape. All other values are in device memory.

The rules are those of ONNX Runtime: `GetCpuPreferredNodes` (core/framework/fallback_cpu_capability.cc), after it
has folded constants, and `TransformerMemcpyImpl` (core/optimizer/transformer_memcpy.cc). The kernels' element types are
in its docs/OperatorKernels.md, and the inputs in host memory are `OrtMemTypeCPUInput` in the kernels' registrations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, inliner

from hfx.exporter.graph.writer import CONTRIB

NEWEST = 21  # a kernel is registered for certain definitions of its operator; KERNELS is about those up to this opset
SMALL = 100  # the most elements of a constant that ONNX Runtime uses on the CPU and on the GPU
Types = frozenset[int]
BOOL, INT32, INT64 = TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
SHORT: Types = frozenset({TensorProto.FLOAT16, TensorProto.FLOAT})
FLOATS: Types = SHORT | {TensorProto.DOUBLE}
HALVES: Types = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
WIDE: Types = FLOATS | {INT32, INT64, TensorProto.UINT32, TensorProto.UINT64}
BYTES: Types = frozenset({TensorProto.INT8, TensorProto.UINT8})
ANY: Types = WIDE | BYTES | HALVES | {BOOL, TensorProto.INT16, TensorProto.UINT16}
NUMBERS: Types = ANY - {BOOL}
# The element type of each attribute of Constant that is no tensor.
CONSTANTS = {
    "value_int": INT64,
    "value_ints": INT64,
    "value_float": TensorProto.FLOAT,
    "value_floats": TensorProto.FLOAT,
}


@dataclass(frozen=True)
class Kernel:
    """The CUDA kernels of an operator.

    `types` are the element types of input `typed` for which there is a kernel. The inputs `host` are read in host
    memory. The outputs have the type of input `typed`, except those that `outputs` names by position; they are in host
    memory if `gives_host`.
    """

    types: Types
    host: tuple[int, ...] = ()
    typed: int = 0
    outputs: Mapping[int, int] | None = None
    gives_host: bool = False


def _alike(operators: str, kernel: Kernel, domain: str = "") -> dict[tuple[str, str], Kernel]:
    return {(domain, operator): kernel for operator in operators.split()}


# The operators of hfx's graphs for GPUs.
KERNELS: dict[tuple[str, str], Kernel] = {
    **_alike("Add Sub Mul Div Neg", Kernel(NUMBERS)),
    **_alike("Equal", Kernel(WIDE | {BOOL}, outputs={0: BOOL})),
    **_alike("Less", Kernel(WIDE, outputs={0: BOOL})),
    **_alike("Max Min", Kernel(WIDE)),
    **_alike("Pow", Kernel(FLOATS | {INT32, INT64})),
    **_alike("Gemm MatMul Relu Sqrt Tanh LayerNormalization LogSoftmax Softmax", Kernel(FLOATS)),
    **_alike("ReduceMean", Kernel(FLOATS | {INT32}, host=(1,))),
    **_alike("Clip", Kernel(FLOATS | BYTES | {INT64}, host=(1, 2))),
    **_alike("CumSum", Kernel(WIDE, host=(1,))),
    **_alike("Not", Kernel(frozenset({BOOL}))),
    **_alike("Where", Kernel(FLOATS | {INT32, INT64, TensorProto.UINT8}, typed=1)),
    **_alike("TopK", Kernel(FLOATS | {INT32, INT64}, host=(1,), outputs={1: INT64})),
    **_alike("Cast Concat Flatten Gather Identity Transpose", Kernel(ANY)),
    **_alike("GatherElements ScatterElements", Kernel(ANY)),
    **_alike("GatherND", Kernel(FLOATS | {BOOL, INT64})),
    **_alike("Expand Reshape Split Squeeze Unsqueeze", Kernel(ANY, host=(1,))),
    **_alike("Slice", Kernel(ANY, host=(1, 2, 3, 4))),
    **_alike("Range", Kernel(FLOATS - HALVES | {TensorProto.INT16, INT32, INT64}, host=(0, 1, 2))),
    **_alike("Shape", Kernel(ANY, outputs={0: INT64}, gives_host=True)),
    **_alike("BiasGelu FastGelu Gelu QuickGelu", Kernel(FLOATS), CONTRIB),
    **_alike("SkipLayerNormalization SkipSimplifiedLayerNormalization", Kernel(SHORT), CONTRIB),
    **_alike("GroupQueryAttention", Kernel(HALVES, host=(6,)), CONTRIB),
    **_alike("MultiHeadAttention", Kernel(SHORT), CONTRIB),
}


def obstacles(model: onnx.ModelProto) -> list[str]:
    """Return what prevents the capture of `model` as a CUDA graph, as sentences; an empty list if nothing does.

    `model` needs no weights. Its inputs that are scalars must be in host memory (engine/sessions.py), all others may be
    in device memory. An operator that KERNELS doesn't list is reported, as its placement is unknown.
    """
    graph = inliner.inline_local_functions(model).graph
    placement = _Placement(
        graph, next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    )
    for node in graph.node:
        placement.add(node)
    return [*placement.problems, *placement.copies()]


class _Placement:
    """The nodes of a graph, added in their order, and the memories that values are written and read in."""

    def __init__(self, graph: onnx.GraphProto, opset: int) -> None:
        self.problems: list[str] = []
        self._graph, self._opset = graph, opset
        self._types = {tensor.name: tensor.data_type for tensor in graph.initializer}
        self._small = {tensor.name: math.prod(tensor.dims) <= SMALL for tensor in graph.initializer}  # by constant
        self._inputs = {value.name for value in graph.input if value.name not in self._types}
        self._scalars = {value.name for value in graph.input if not value.type.tensor_type.shape.dim} & self._inputs
        self._types |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        self._on_host: set[str] = set()  # values whose consumers ONNX Runtime considers for the CPU
        self._written: dict[str, tuple[bool, str]] = {}  # by value: whether in host memory, and by which node
        self._read: dict[bool, dict[str, str]] = {True: {}, False: {}}  # in host memory or not: the first reader

    def add(self, node: onnx.NodeProto) -> None:
        """Place `node`, whose inputs are known."""
        self._set_types(node)
        if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
            self.problems.append(f"{_named(node)} has a subgraph.")
            return
        if all(name in self._small for name in node.input if name):  # ONNX Runtime computes constants beforehand
            small = all(self._small[name] for name in node.input if name)
            self._small |= dict.fromkeys(node.output, small)
            return
        kernel, considered = self._kernel(node), not self._on_host.isdisjoint(node.input)
        if kernel is None:
            self.problems.append(
                f"{_named(node)} has no CUDA kernel that hfx knows for {self._type(node)} and opset {self._opset}."
            )
        on_cpu = kernel is None or (considered and self._prefers_cpu(node, kernel))
        on_host = on_cpu or (kernel is not None and kernel.gives_host)
        if (considered and on_cpu) or (not on_cpu and on_host):
            self._on_host.update(node.output)
        for at, name in enumerate(node.input):
            if name and name not in self._small:
                in_host = on_cpu or (kernel is not None and at in kernel.host)
                self._read[in_host].setdefault(name, _named(node))
        self._written |= {name: (on_host, _named(node)) for name in node.output if name}

    def copies(self) -> Iterator[str]:
        """Yield the values that are needed in another memory than they are in."""
        host, device = self._read[True], self._read[False]
        for name in sorted(self._inputs & device.keys()):
            if name in host:
                yield f"The input {name} is read by {host[name]} in host memory and by {device[name]} on the GPU."
            elif name in self._scalars:
                yield f"The input {name}, a scalar in host memory, is read by {device[name]} on the GPU."
        for name, (on_host, writer) in self._written.items():
            if on_host and name in device:
                yield f"{name} is computed by {writer} in host memory, and read by {device[name]} on the GPU."
            elif not on_host and name in host:
                yield f"{name} is computed by {writer} on the GPU, and read by {host[name]} in host memory."
        for value in self._graph.output:
            if self._written.get(value.name, (False, ""))[0]:
                yield f"The output {value.name} is computed by {self._written[value.name][1]} in host memory."

    def _kernel(self, node: onnx.NodeProto) -> Kernel | None:
        kernel = KERNELS.get((node.domain, node.op_type))
        if kernel is None or self._types.get(node.input[kernel.typed], 0) not in kernel.types:
            return None
        since = 1 if node.domain else onnx.defs.get_schema(node.op_type, self._opset).since_version
        return kernel if since <= NEWEST else None

    def _prefers_cpu(self, node: onnx.NodeProto, kernel: Kernel) -> bool:
        """Whether all inputs are constants, inputs of the graph, or host values that the kernel reads on the GPU."""
        return all(
            self._types.get(name) not in HALVES
            and (
                self._small.get(name, False)
                or name in self._inputs
                or (name in self._on_host and at not in kernel.host)
            )
            for at, name in enumerate(node.input)
        )

    def _set_types(self, node: onnx.NodeProto) -> None:
        kernel = KERNELS.get((node.domain, node.op_type), Kernel(ANY))
        typed = self._types.get(node.input[kernel.typed], 0) if len(node.input) > kernel.typed else 0
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                typed = attribute.i
            if node.op_type == "Constant":
                typed = CONSTANTS.get(attribute.name, attribute.t.data_type)
        outputs = kernel.outputs or {}
        self._types |= {name: outputs.get(at, typed) for at, name in enumerate(node.output)}

    def _type(self, node: onnx.NodeProto) -> str:
        typed = next((self._types.get(name, 0) for name in node.input if name), 0)
        return str(TensorProto.DataType.Name(typed)).lower()


def _named(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]}"
