"""Graphs, configurations and requests for tests of the Python backend `onnxruntime`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from hfx.exporter.encoder.graph.ragged import flatten_inputs
from hfx.python_backends.onnxruntime.ragged import Request
from hfx.python_backends.onnxruntime.sessions import Feed, Outputs, Session
from tests.rigs.files import onnx_toys

INT32, FP32 = "TYPE_INT32", "TYPE_FP32"


def accelerated(device: str, name: str) -> dict[str, Any]:
    return {"execution_accelerators": {f"{device}_execution_accelerator": [{"name": name, "parameters": {}}]}}


def string_parameters(**values: str) -> dict[str, Any]:
    return {key.replace("__", "."): {"string_value": value} for key, value in values.items()}


def batch_input(kind: str, target: str = "t", source: str = "s", data_type: str = INT32) -> dict[str, Any]:
    return {"kind": kind, "target_name": [target], "data_type": data_type, "source_input": [source]}


def ragged_config(**changed: Any) -> dict[str, Any]:
    """Return the configuration of a net as exports make it: flat ids, and an item_shape that the server makes."""
    return {
        "max_batch_size": 64,
        "input": [{"name": "ids", "data_type": INT32, "dims": [-1], "allow_ragged_batch": True}],
        "output": [
            {"name": "total", "data_type": INT32, "dims": [1]},
            {"name": "doubled", "data_type": INT32, "dims": [-1]},
        ],
        "batch_input": [batch_input("BATCH_ITEM_SHAPE", "item_shape", "ids")],
        **changed,
    }


def save(folder: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], **constants: Any) -> Path:
    weights = {name: np.array(value, np.int64) for name, value in constants.items()}
    path = folder / "model.onnx"
    onnx.save(onnx_toys.graph(nodes, inputs, outputs, weights), path)
    return path


def value(name: str, shape: Sequence[Any], element: int = TensorProto.INT32) -> Any:
    return helper.make_tensor_value_info(name, element, list(shape))


def doubling(folder: Path, *shape: str | int) -> Path:
    """Write x -> y = x + x, of one shape."""
    return save(folder, [helper.make_node("Add", ["x", "x"], ["y"])], [value("x", shape)], [value("y", shape)])


def doubling_config(size: int, **changed: Any) -> dict[str, Any]:
    """Return the configuration of `doubling`; `changed` are fields of its input."""
    tensors = ({"name": name, "data_type": INT32, "dims": [-1]} for name in "xy")
    return {"max_batch_size": size, "input": [next(tensors) | changed], "output": [next(tensors)]}


def write_ragged(folder: Path) -> Path:
    """Write ids [tokens], item_shape [rows, 1] -> total [rows, 1] (the row's sum), doubled [rows, width]."""
    nodes = [
        helper.make_node("Shape", ["item_shape"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["dense_shape"], axis=0),
        helper.make_node("Reshape", ["ids", "dense_shape"], ["dense"]),
        helper.make_node("ReduceSum", ["dense", "one"], ["total"], keepdims=1),
        helper.make_node("Add", ["dense", "dense"], ["doubled"]),
    ]
    inputs = [value("ids", ["tokens"]), value("item_shape", ["rows", 1])]
    outputs = [value("total", ["rows", 1]), value("doubled", ["rows", "width"])]
    return save(folder, nodes, inputs, outputs, zero=[0], one=[1], rest=[-1])


def write_padding(folder: Path, *names: str) -> Path:
    """Write a graph that pads rows of any widths itself: inputs `names` -> total, doubled of the sum of the inputs."""
    nodes = [
        *(helper.make_node("Cast", [name], [f"{name}.float"], to=TensorProto.FLOAT) for name in names),
        helper.make_node("Sum", [f"{name}.float" for name in names], ["sum"]),
        helper.make_node("Cast", ["sum"], ["dense"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["dense", "one"], ["total"], keepdims=1),
        helper.make_node("Add", ["dense", "dense"], ["doubled"]),
    ]
    inputs = [value(name, ["rows", "width"], TensorProto.INT64) for name in names]
    outputs = [value("total", ["rows", 1]), value("doubled", ["rows", "width"])]
    path = save(folder, nodes, inputs, outputs, one=[1])
    model = onnx.load(path)
    flatten_inputs(model, 1, dict.fromkeys(names, 0))
    onnx.save(model, path)
    return path


def request(*rows: Sequence[int], wanted: tuple[str, ...] = ("total", "doubled")) -> Request:
    return Request({"ids": np.array(rows, np.int32)}, wanted)


class Recording:
    """A session that records its feeds; by default it reports the same about padding as `session`."""

    def __init__(self, session: Session, skips_padding: bool | None = None) -> None:
        self.session = session
        self.skips_padding = session.skips_padding if skips_padding is None else skips_padding
        self.inputs, self.outputs = session.inputs, session.outputs
        self.feeds: list[Feed] = []
        self.wanted: list[Sequence[str]] = []

    def run(self, feed: Feed, wanted: Sequence[str]) -> Outputs:
        self.feeds.append(feed)
        self.wanted.append(wanted)
        return self.session.run(feed, wanted)


def outputs(found: Outputs | Exception) -> Outputs:
    assert not isinstance(found, Exception), found
    return found
