"""Where ONNX Runtime's CUDA provider would copy a tensor between the processor and the GPU, read from a graph.

ONNX Runtime refuses to capture a CUDA graph of a session that has such a copy (a Memcpy node). It computes sizes on the
processor: the kernel of Shape writes to its memory, and nodes that read only such tensors and small constants run
there, too (GetCpuPreferredNodes in fallback_cpu_capability.cc). A copy is needed where a kernel on the GPU reads the
value of a tensor that is on the other side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

# Operator -> its inputs that the CUDA kernel reads from the processor's memory.
ON_PROCESSOR = {
    "Clip": {1, 2},
    "ConstantOfShape": {0},
    "CumSum": {1},
    "Expand": {1},
    "OneHot": {1, 2},
    "Pad": {1, 2, 3},
    "Range": {0, 1, 2},
    "Reshape": {1},
    "Slice": {1, 2, 3, 4},
    "Split": {1},
    "Squeeze": {1},
    "Tile": {1},
    "TopK": {1},
    "Trilu": {1},
    "Unsqueeze": {1},
    **{f"Reduce{kind}": {1} for kind in ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
}
SIZES = {"Shape", "Size"}  # operators whose CUDA kernel writes to the processor's memory
# Kernels that copy a size to the processor while they run, and control flow, which reads its condition there.
UNCAPTURED = {"Compress", "If", "Loop", "NonZero", "Scan", "Unique"}
FLOATS = {onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}
FLOATS16 = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
SMALL = 100  # the numbers in a constant that may be copied to the processor when the session is opened


def copied(model: onnx.ModelProto) -> list[str]:
    """Return the names of the nodes that a copy precedes, or whose kernel can't be captured.

    They are those that are left after the optimizations with which ONNX Runtime begins, for any provider.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(_copied(onnx.shape_inference.infer_shapes(onnx.load(options.optimized_model_filepath)).graph))


def _copied(graph: onnx.GraphProto) -> Iterator[str]:
    constants = {each.name: each for each in graph.initializer}
    small = {name for name, each in constants.items() if np.prod(each.dims) <= SMALL}
    small -= {name for name, each in constants.items() if each.data_type in FLOATS16}
    types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    on_processor = set[str]()
    for node in graph.node:
        read = [name for name in node.input if name]
        own = ON_PROCESSOR.get(node.op_type, set())
        given = {at for at, name in enumerate(node.input) if name in on_processor}
        runs_there = bool(given) and not given & own and node.op_type not in SIZES
        runs_there = runs_there and all(name in on_processor or name in small for name in read)
        if node.op_type in UNCAPTURED or (node.op_type == "ArgMax" and types.get(node.input[0], 0) not in FLOATS):
            yield node.name
        elif runs_there or node.op_type in SIZES:
            on_processor.update(node.output)
        else:
            needed = {at for at in own if at < len(node.input) and node.input[at]}
            if given - own or any(node.input[at] not in on_processor | constants.keys() for at in needed):
                yield node.name
