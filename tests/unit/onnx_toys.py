"""Toy ONNX graphs whose answers can be worked out by hand, and the running of any graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def run(model: onnx.ModelProto, **feed: Any) -> list[np.ndarray]:
    """The outputs by ONNX Runtime on the CPU as it serves the model: with all of its optimizations."""
    import onnxruntime

    return _run(model, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, feed)


def run_as_written(model: onnx.ModelProto, **feed: Any) -> list[np.ndarray]:
    """The outputs of the graph's own operators, none of them fused."""
    import onnxruntime

    return _run(model, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, feed)


def session(model: onnx.ModelProto) -> Callable[..., list[np.ndarray]]:
    """What runs `model` as it is served, any number of times."""
    import onnxruntime

    return _session(model, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)


def _run(model: onnx.ModelProto, level: Any, feed: dict[str, Any]) -> list[np.ndarray]:
    return _session(model, level)(**feed)


def _session(model: onnx.ModelProto, level: Any) -> Callable[..., list[np.ndarray]]:
    import onnxruntime

    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    opened = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(**feed: Any) -> list[np.ndarray]:
        answers: list[np.ndarray] = opened.run(None, feed)
        return answers

    return run
