"""Other ways to batch mixed lengths than the exporter's, as edits of a published net. Measures nothing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.repositories import change_configs
from hfx.names import INPUT_IDS, ITEM_SHAPE

PREFIX = "bench.padded."
MODEL = "model.onnx"

# The backend's own files beside it, with one change: all requests of a batch share one run, whatever their shapes.
ONE_RUN = '''"""The onnxruntime backend without its grouping: what NVIDIA's C++ one does with this configuration."""

from .onnxruntime import model, ragged


def _feeds(layout, group, rows):
    feeds = [request.feed for request in group]
    flat = [{name: array.reshape(-1) for name, array in feed.items()} for feed in feeds]
    feed = dict(ragged._joined(flat))
    for batch_input in layout.batch_inputs:
        made = batch_input.make([each[batch_input.source] for each in feeds], layout.batched)
        feed.update({target: made for target in batch_input.targets})
    yield feed, rows


ragged._groups = lambda layout, requests: [[*range(len(requests))]]
ragged._feeds = _feeds
model.model_file = lambda config, folder: folder / "model.onnx"
TritonPythonModel = model.TritonPythonModel
'''


def padded(net: Path) -> None:
    """The usual form: inputs `[rows, width]`, so Triton batches only requests of one width, in their order."""
    change_configs(net, lambda text: re.sub(r"batch_input \{.*\}\n", "", text.replace(" allow_ragged_batch: true", "")))
    path = next((net / "1").glob("*.onnx"))
    model = onnx.load(path)
    path.unlink()  # it is shared with the original
    onnx.save(_pad(model), path)


def one_run(net: Path) -> None:
    """The flat graph on the whole batch at once, every row padded to the longest."""
    import hfx.python_backends.onnxruntime as backend

    version = net / "1"
    source = Path(str(backend.__file__)).parent
    shutil.copytree(source, version / "onnxruntime", ignore=shutil.ignore_patterns("__pycache__"))
    (version / "model.py").write_text(ONE_RUN, encoding="utf-8")
    next(version.glob("*.onnx")).rename(version / MODEL)
    change_configs(net, _as_python_model)


def _as_python_model(text: str) -> str:
    return re.sub(r"default_model_filename.*\n", "", text.replace('backend: "onnxruntime"', 'backend: "python"'))


def _pad(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inputs `[rows, width]` in front of the flat ones: the body of the graph stays the same."""
    graph = model.graph
    names = [value.name for value in graph.input if value.name != ITEM_SHAPE]
    for node in graph.node:
        for at, used in enumerate(node.input):
            if used in names:
                node.input[at] = PREFIX + used
    front = [helper.make_node("Reshape", [name, _constant(graph, "flat", [-1])], [PREFIX + name]) for name in names]
    shape, width, target = (PREFIX + name for name in ("shape", "row_width", "target"))
    one = _constant(graph, "one", [1])
    front += [
        helper.make_node("Shape", [INPUT_IDS], [shape]),
        helper.make_node("Slice", [shape, one, _constant(graph, "two", [2])], [width]),
        helper.make_node("Slice", [shape, _constant(graph, "zero", [0]), one], [PREFIX + "rows"]),
        helper.make_node("Concat", [PREFIX + "rows", one], [target], axis=0),
        helper.make_node("Expand", [width, target], [PREFIX + "widths"]),
        helper.make_node("Cast", [PREFIX + "widths"], [ITEM_SHAPE], to=TensorProto.INT32),
    ]
    nodes = [*front, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.input[:]
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT32, ["rows", "width"]) for name in names)
    return model


def _constant(graph: onnx.GraphProto, name: str, value: list[int]) -> str:
    full = PREFIX + name
    if all(initializer.name != full for initializer in graph.initializer):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), full))
    return full
