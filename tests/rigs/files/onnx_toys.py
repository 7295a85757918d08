"""Toy ONNX graphs with answers that can be worked out by hand, and functions that run any graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
IR = 10


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, Any] | None = None,
) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    made = helper.make_graph(list(nodes), "toy", list(inputs), list(outputs), weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def integers(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape))


def session(
    model: onnx.ModelProto, level: str = "ORT_ENABLE_ALL", operators: Path | None = None, threads: int = 0
) -> Callable[..., list[np.ndarray]]:
    """Return a session of `model` on the CPU, by default with all optimizations, as hfx serves it.

    `operators` is a library of operators.
    """
    import onnxruntime

    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # of cores that other tests need
    if operators:
        options.register_custom_ops_library(str(operators))
    opened = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda **feed: list(opened.run(None, feed))


def run(model: onnx.ModelProto, **feed: Any) -> list[np.ndarray]:
    """Return the outputs as the model is served."""
    return session(model)(**feed)
