"""`python -m bench.native`: single products of the models that are measured, native beside the runtimes' own.

A run is of as many products as fill MEGABYTES with weights, so that these come from memory, as in a step of a model;
figures are of one product. The limit is the longer of reading its weights and of multiplying with them (roofline.py).
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bench import command, roofline
from bench.child import Child, Prepare, Run
from bench.command import Settings, Work
from bench.figures import Figures, noted, take_turns
from bench.peers import THREADS

MEGABYTES, ROWS, SECONDS = 176, (1, 4, 8, 16, 32, 64, 128, 1024), 0.3
NATIVE, ORT, OPENVINO = "hfx native", "onnxruntime", ("openvino, row", "openvino, 128", "openvino, bf16")


class Product(NamedTuple):
    """[rows, inputs] by [inputs, outputs] as the operator `name` has it."""

    inputs: int
    outputs: int
    name: str


PRODUCTS = {
    "qkv": Product(768, 2304, "Int8Linear"),
    "out": Product(768, 768, "Int8LinearAdd"),
    "up": Product(768, 3072, "Int8LinearGeluTanh"),
    "down": Product(3072, 768, "Int8LinearAdd"),
    "head": Product(768, 50257, "Int8Head"),
    "bart-up": Product(1024, 4096, "Int8LinearGelu"),
    "bart-down": Product(4096, 1024, "Int8LinearAdd"),
}


def measure(name: str, settings: Settings, figures: Figures) -> None:
    """All ways in every round, each in a process of its own."""
    product, rates, operations = PRODUCTS[name], roofline.rates(), roofline.vnni_operations()
    size = product.inputs * product.outputs
    copies = 2 if settings.quick else -(-(MEGABYTES << 20) // size)

    def turn(child: Child, rows: int) -> dict[str, float | None]:
        seconds = statistics.median(child.run(rows, SECONDS).seconds) / copies
        limit = max(size / rates.read_bytes, 2 * rows * size / operations)
        return {"ms": 1000 * seconds, "of_the_limit": limit / seconds}

    counts = ROWS[:2] if settings.quick else [rows for rows in ROWS if rows * product.outputs < 1 << 23]
    with ExitStack() as stack:
        ways = {}
        for way in (NATIVE, ORT, *OPENVINO):
            if not settings.ways or any(word in way for word in settings.ways):
                with noted(figures, way):
                    opened = open_openvino if way in OPENVINO else open_onnxruntime
                    child = stack.enter_context(Child(opened, way=way, product=product, copies=copies))
                    ways[way] = partial(turn, child)
        take_turns(figures, name, {f"{name}, {rows} rows": rows for rows in counts}, ways, settings.turns(5))


def tensors(product: Product, copy: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights [outputs, inputs] in int8, scales and biases: others for each copy, as equal ones could be merged."""
    rng = np.random.default_rng(copy)
    values = rng.integers(-127, 128, (product.outputs, product.inputs), dtype=np.int8)
    return values, rng.random(product.outputs, np.float32) / 4000, rng.standard_normal(product.outputs, np.float32)


def ends(product: Product, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, the residual and the output of `rows` rows."""
    rng = np.random.default_rng(0)
    x, residual = (rng.standard_normal((rows, width), np.float32) for width in (product.inputs, product.outputs))
    return x, residual, np.zeros((rows, 1), np.int64) if product.name == "Int8Head" else np.zeros_like(residual)


def open_onnxruntime(way: str, product: Product, copies: int) -> Prepare:
    """One graph for both: without the library, the operator's ONNX function runs instead."""
    import onnx.parser
    import onnxruntime
    from onnx.numpy_helper import from_array

    from hfx.exporter.graph import operators
    from hfx.native import library

    each = range(copies)
    logits, kind, more = {
        "Int8Head": ("logits{0}, ", "int64", ", wants_logits"),
        "Int8LinearAdd": ("", "float", ", residual"),
    }.get(product.name, ("", "float", ""))
    inputs = [*(f"x{copy}" for copy in each), *["residual"] * more.count("residual")]
    sizes = f"in_features = {product.inputs}, out_features = {product.outputs}"
    line = f"{logits}y{{0}} = hfx.{product.name} <{sizes}> (x{{0}}, w{{0}}, s{{0}}, b{{0}}{more})\n"
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "hfx": 1, "com.microsoft": 1]> products '
        f"({', '.join(f'float[rows, n] {name}' for name in inputs)}) => "
        f"({', '.join(f'{kind}[rows, m] y{copy}' for copy in each)}) {{ {''.join(map(line.format, each))} }}"
    )
    model.functions.append(operators.function(product.name))
    constants = {"wants_logits": np.array(False)}
    for copy in each:
        values, constants[f"s{copy}"], constants[f"b{copy}"] = tensors(product, copy)
        constants[f"w{copy}"] = operators.panels_of(values)
    model.graph.initializer.extend(from_array(array, name) for name, array in constants.items())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3
    if way == NATIVE:
        options.register_custom_ops_library(str(library()))
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kept = []  # bound by their addresses

    def prepare(rows: int) -> Run:
        x, residual, y = ends(product, rows)
        binding = session.io_binding()
        for name in inputs:
            array = residual if name == "residual" else x
            binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        for copy in each:
            binding.bind_output(f"y{copy}", "cpu", 0, y.dtype.type, y.shape, y.ctypes.data)
        kept.append((x, residual, y))
        return lambda: session.run_with_iobinding(binding)

    return prepare


def open_openvino(way: str, product: Product, copies: int) -> Prepare:
    """Weights in int8 with a scale a column; activations are quantized by groups of 128 or by row, or are bf16."""
    import openvino
    from openvino import opset16 as ops

    x, residual = (ops.parameter([-1, width], np.float32) for width in (product.inputs, product.outputs))
    results = []
    for copy in range(copies):
        values, scale, bias = tensors(product, copy)
        weights = ops.multiply(ops.convert(ops.constant(values), np.float32), ops.constant(scale[:, None]))
        y = ops.add(ops.matmul(x, weights, False, True), ops.constant(bias[None]))
        if "Gelu" in product.name:
            y = ops.gelu(y, "tanh" if product.name.endswith("Tanh") else "erf")
        if product.name == "Int8LinearAdd":
            y = ops.add(y, residual)
        if product.name == "Int8Head":
            y = ops.topk(y, np.int64(1), -1, "max", "none", "i64").output(1)
        results.append(ops.result(y))
    fed = [x, residual] if product.name == "Int8LinearAdd" else [x]
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": THREADS,
        "INFERENCE_PRECISION_HINT": "bf16" if way.endswith("bf16") else "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": {"128": 128, "bf16": 0}.get(way.split()[-1], product.inputs),
    }
    compiled = openvino.Core().compile_model(openvino.Model(results, fed), "CPU", settings)
    kept = []  # bound by their addresses

    def prepare(rows: int) -> Run:
        *given, y = ends(product, rows)
        request = compiled.create_infer_request()
        for index in range(len(fed)):
            request.set_input_tensor(index, openvino.Tensor(given[index], shared_memory=True))
        for index in range(copies):
            request.set_output_tensor(index, openvino.Tensor(y, shared_memory=True))
        kept.append((given, y))
        return lambda: (request.start_async(), request.wait())[1]

    return prepare


if __name__ == "__main__":
    works = {
        name: Work(f"{inputs} → {outputs}, {operator}", partial(measure, name), ("ms", "of the limit"), (NATIVE,), "ms")
        for name, (inputs, outputs, operator) in PRODUCTS.items()
    }
    raise SystemExit(command.run("native", works))
