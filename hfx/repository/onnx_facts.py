"""Facts about an ONNX file, read without the external data of its weights.

For a file that can't be read, the facts have a problem. The onnx package is imported only when there is a file to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The names of data types in onnx.TensorProto and in Triton, as in ConvertFromOnnxDataType of onnxruntime_backend,
# src/onnxruntime_utils.cc.
_SAME = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "STRING")
TRITON_TYPES = {name: f"TYPE_{name}" for name in _SAME}
TRITON_TYPES |= {"FLOAT16": "TYPE_FP16", "FLOAT": "TYPE_FP32", "DOUBLE": "TYPE_FP64"}


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """A graph input or output: Triton's data type, and the dims with -1 for a symbol (None: there is no shape)."""

    data_type: str
    dims: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class OnnxFacts:
    """The default opset (0: none), IR version, tensors, (domain, operator) pairs and external data files of a model."""

    problem: str = ""
    opset: int = 0
    ir: int = 0
    inputs: Mapping[str, OnnxTensor] = field(default_factory=dict)
    outputs: Mapping[str, OnnxTensor] = field(default_factory=dict)
    operators: frozenset[tuple[str, str]] = frozenset()
    external: frozenset[str] = frozenset()


def read_onnx(path: Path) -> OnnxFacts:
    """Read the facts of one file. Never raises because of the file's contents."""
    import onnx

    try:
        if not path.is_file():
            return OnnxFacts(problem="is not a regular file")
        model = onnx.load(path, load_external_data=False)
        facts = _facts(model)
    except Exception as error:  # protobuf, onnx and numpy raise many kinds for damaged bytes, all with the same meaning
        return OnnxFacts(problem=f"can't be read as ONNX: {str(error)[:200] or type(error).__name__}")
    return facts if facts.operators or facts.outputs else OnnxFacts(problem="holds no graph")


def _facts(model: Any) -> OnnxFacts:
    weights = {tensor.name for tensor in model.graph.initializer}
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    nodes = [*_nodes(model.graph), *(node for function in model.functions for node in _nodes(function))]
    return OnnxFacts(
        opset=opsets.get("ai.onnx", 0),
        ir=model.ir_version,
        inputs={value.name: _tensor(value) for value in model.graph.input if value.name not in weights},
        outputs={value.name: _tensor(value) for value in model.graph.output},
        operators=frozenset((node.domain or "ai.onnx", node.op_type) for node in nodes),
        external=frozenset(
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        ),
    )


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for below in (attribute.g, *attribute.graphs):
                yield from _nodes(below)


def _tensor(value: Any) -> OnnxTensor:
    from onnx import TensorProto

    tensor = value.type.tensor_type
    data_type = TRITON_TYPES.get(TensorProto.DataType.Name(tensor.elem_type), "TYPE_INVALID")
    if not tensor.HasField("shape"):
        return OnnxTensor(data_type, None)
    return OnnxTensor(data_type, tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim))
