"""Rank the products of an encoder's graph by the error that each one alone adds to the outputs in int8.

The float graph runs on a few texts. For one product at a time, the difference between its int8 and its float32 result
is added to its float32 result, and the rest of the graph is computed in float32. A single ONNX file with an input for
each difference serves all products.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hfx.exporter.encoder.graph.linears import FoundLinear, GraphView
from hfx.exporter.encoder.graph.ragged import assign
from hfx.exporter.progress import counted
from hfx.exporter.quantize.generator import int8_rows
from hfx.exporter.quantize.products import Product

Feed = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float32]
PROBE = "hfx.probe."  # the name of a difference: this, and the name of the tensor that it is added to
NO_DIFFERENCE = np.zeros(1, np.float32)
STEPS = 127  # between zero and the largest number of a row of activations in int8


def rank(
    model: onnx.ModelProto,
    view: GraphView,
    products: Sequence[Product],
    feeds: Sequence[Feed],
    levels: int,
    threads: int,
) -> dict[str, float]:
    """Return product name -> error, the largest first, of the float graph `model` on `feeds`, each without padding.

    The error is the root mean square of the outputs' differences, relative to that of the outputs. `levels` are
    those of int8 weights.
    """
    parts = [part for product in products for part in product.parts]
    outputs = [value.name for value in model.graph.output]
    read = sorted({part.x for part in parts}.difference(outputs))
    zeros = {_probe(model, part): NO_DIFFERENCE for part in parts}
    with tempfile.TemporaryDirectory(prefix="hfx-sensitivity-") as folder:
        path = Path(folder) / "probed.onnx"
        onnx.save(_probed(model, parts, read), path, save_as_external_data=True)
        session = _session(path, threads)

        def run(wanted: Sequence[str], feed: Feed) -> dict[str, Floats]:
            return dict(zip(wanted, session.run(wanted, {**zeros, **feed}), strict=True))

        plain = [run([*outputs, *read], feed) for feed in feeds]
        errors = {}
        for product in counted(products, "products in int8 alone"):
            added = _added(model, view, product, plain, levels)
            changed = [run(outputs, {**feed, **each}) for feed, each in zip(feeds, added, strict=True)]
            errors[product.name] = _error(plain, changed)
    return dict(sorted(errors.items(), key=lambda each: -each[1]))


def _added(
    model: onnx.ModelProto, view: GraphView, product: Product, plain: Sequence[Mapping[str, Floats]], levels: int
) -> list[dict[str, Floats]]:
    """Return for each batch what a product in int8 adds to its float32 results; `plain` has the tensors it reads."""
    added: list[dict[str, Floats]] = [{} for _ in plain]
    for part in product.parts:
        weight = numpy_helper.to_array(view.weights[part.weight])
        differences = _differences(weight if part.transposed else weight.T, [each[part.x] for each in plain], levels)
        for each, difference in zip(added, differences, strict=True):
            each[_probe(model, part)] = difference
    return added


def _probe(model: onnx.ModelProto, part: FoundLinear) -> str:
    return PROBE + str(model.graph.node[part.nodes[0]].output[0])


def _probed(model: onnx.ModelProto, parts: Sequence[FoundLinear], read: Sequence[str]) -> onnx.ModelProto:
    """Return the graph with an input that is added to each product, and with the tensors `read` as further outputs."""
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    graph, added = probed.graph, dict[int, onnx.NodeProto]()
    for part in parts:
        node = graph.node[part.nodes[0]]
        made, probe = node.output[0], _probe(model, part)
        node.output[0] = made + ".before"
        added[part.nodes[0]] = helper.make_node("Add", [made + ".before", probe], [made], name=probe)
        graph.input.append(helper.make_tensor_value_info(probe, TensorProto.FLOAT, None))
    assign(graph.node, [each for at, node in enumerate(graph.node) for each in (node, added.get(at)) if each])
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in read)
    del graph.value_info[:]
    return probed


def _session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _differences(matrix: Floats, inputs: Sequence[Floats], levels: int) -> list[Floats]:
    """Return for each of `inputs` [..., inputs] the int8 product with `matrix` [outputs, inputs] less the float one."""
    values, scales = int8_rows(matrix, levels)
    rows = np.concatenate([x.reshape(-1, x.shape[-1]) for x in inputs])
    peaks = np.abs(rows).max(-1, keepdims=True)
    steps = np.rint(np.divide(rows, peaks, out=np.zeros_like(rows), where=peaks > 0) * STEPS) * (peaks / STEPS)
    error = steps @ (values * scales[:, None]).T.astype(np.float32) - rows @ matrix.T
    ends = np.cumsum([x.size // x.shape[-1] for x in inputs])[:-1]
    return [part.reshape(*x.shape[:-1], len(matrix)) for part, x in zip(np.split(error, ends), inputs, strict=True)]


def _error(plain: Sequence[Mapping[str, Floats]], changed: Sequence[Mapping[str, Floats]]) -> float:
    """Return the root mean square of the differences, relative to that of `plain`; infinity if one is no number."""
    pairs = [(one[name], value) for one, other in zip(plain, changed, strict=True) for name, value in other.items()]
    whole, other = (
        np.concatenate([each.ravel() for each in side]).astype(np.float64) for side in zip(*pairs, strict=True)
    )
    tiny = np.finfo(np.float64).tiny
    error = float(np.sqrt(np.square(other - whole).sum() / max(np.square(whole).sum(), tiny)))
    return error if np.isfinite(error) else float("inf")
