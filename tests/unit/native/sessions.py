"""ONNX Runtime sessions of one native operator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from hfx.exporter.graph import operators
from tests.unit.native.libraries import SANITIZED
from tests.unit.native.reference import Int4Linear, Linear

# What is fed behind the bias.
INPUTS = {
    "Int8Head": {"wants_logits": TensorProto.BOOL},
    "Int4Head": {"wants_logits": TensorProto.BOOL},
    "Int8HeadOutliers": {"wants_logits": TensorProto.BOOL, "outliers": TensorProto.FLOAT},
    "Int8LinearAdd": {"residual": TensorProto.FLOAT},
    "Int4LinearAdd": {"residual": TensorProto.FLOAT},
}


def one_node(
    operator: str,
    constants: Mapping[str, np.ndarray],
    attributes: Mapping[str, int],
    fed: Mapping[str, int] | None = None,
    padded: bool = False,
) -> onnx.ModelProto:
    """Return a graph of `operator` alone; constants that `fed` names with their types are inputs.

    With `padded`, it has the optional input `last`.
    """
    more = INPUTS.get(operator, {}) | ({"last": TensorProto.INT32} if padded else {})
    types = {"x": TensorProto.INT64 if operator.endswith("Rows") else TensorProto.FLOAT, **more, **(fed or {})}
    names = ["x", *(name for name in constants if name != "columns"), *more, *(["columns"] * ("columns" in constants))]
    outputs = {"y": TensorProto.FLOAT, **({"ids": TensorProto.INT64} if "Head" in operator else {})}
    node = helper.make_node(operator, names, list(outputs), domain="hfx", **attributes)
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items() if name not in types]
    ends = [[helper.make_tensor_value_info(name, kind, None) for name, kind in end.items()] for end in (types, outputs)]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("hfx", 1)]
    return helper.make_model(
        helper.make_graph([node], "one", ends[0], ends[1], weights), opset_imports=opsets, ir_version=10
    )


def model_of(operator: str, linear: Linear | Int4Linear, padded: bool = False, **more: np.ndarray) -> onnx.ModelProto:
    """Return `operator` with the weights of `linear` and `more` constants; with `padded`, it has the input `last`."""
    halves = 2 if "Gated" in operator else 1
    constants = {**linear.constants(halves), **more}
    if operator.endswith("Rows"):
        del constants["bias"]
    return one_node(operator, constants, linear.sizes(halves), padded=padded)


def attention_model(operator: str, fed: Mapping[str, int], portable: bool, **attributes: Any) -> onnx.ModelProto:
    """Return an attention with the types of its inputs `fed`; with `portable`, it has its definition."""
    ends = [helper.make_tensor_value_info(name, kind, None) for name, kind in fed.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(operator, list(fed), ["y"], domain="hfx", **attributes)
    domains = {"": 21, "hfx": 1, "com.microsoft": 1}
    return helper.make_model(
        helper.make_graph([node], "one", ends, [y]),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in domains.items()],
        functions=[operators.function(operator)] if portable else [],
        ir_version=10,
    )


def options(library: Path | None, threads: int = 1) -> onnxruntime.SessionOptions:
    """Return session options with `library` registered, if any.

    Sanitizers see each tensor's end only without an arena.
    """
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = threads
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")  # of cores that other tests need
    made.enable_cpu_mem_arena = not SANITIZED
    made.log_severity_level = 4  # refusals are logged as errors
    if library:
        made.register_custom_ops_library(str(library))
    return made


def open_model(model: onnx.ModelProto, settings: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    """Return a session on the CPU."""
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


class Operator:
    """`operator` with the weights of `linear`: calls return the output, or, for a head, (logits, ids).

    Without a `library` the operator runs by its definition.
    """

    def __init__(
        self,
        library: Path | None,
        operator: str,
        linear: Linear | Int4Linear,
        threads: int = 1,
        padded: bool = False,
        **more: np.ndarray,
    ) -> None:
        model = model_of(operator, linear, padded, **more)
        if library is None:
            model.functions.append(operators.function(operator))
            model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        self.session = open_model(model, options(library, threads))

    def __call__(self, x: np.ndarray, **more: np.ndarray) -> Any:
        found = self.session.run(None, {"x": x, **more})
        return found[0] if len(found) == 1 else found
