"""`python -m bench.machine.probe`: this machine's rates by several ways, the best of each as a line of JSON.

A rate is what some program reaches on all cores, so it is a limit that can be reached. It must not know what is kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hfx.perf.machine import cores

SECONDS = 1.0  # of each way; the best turn counts, as other work can only slow it down
BYTES_A_CORE = 256 << 20  # far more than caches hold
SIZES = (1024, 2048)  # of square matrices
Step = Callable[[], object]
Ways = Iterator[tuple[str, float, Step]]  # what it is, what one step does (bytes or operations), the step


def main() -> None:
    """Measure all, and print {rate: [a second, how]}."""
    tables: Mapping[str, Callable[[], Ways]] = {
        "read_bytes": reading,
        "fp32_operations": multiplying_fp32,
        "int8_operations": multiplying_int8,
    }
    print(json.dumps({name: best(ways()) for name, ways in tables.items()}))


def best(ways: Ways) -> tuple[float, str]:
    """The highest rate, and the way that reached it. A way that this machine lacks is left out."""
    found = [(work / fastest(step), name) for name, work, step in ways]
    if not found:
        raise SystemExit("no package that can do it is installed")
    return max(found)


def fastest(step: Step) -> float:
    """Seconds of the fastest of many STEPs, after one that counts nothing."""
    step()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times)


def reading() -> Ways:
    """Every core reads an array of its own that no cache holds."""
    many = cores()
    arrays = [np.ones(BYTES_A_CORE // 4, np.float32) for _ in range(many)]
    total = float(sum(array.nbytes for array in arrays))
    with ThreadPoolExecutor(many) as pool:
        yield f"numpy's dot of float32 in {many} threads", total, lambda: list(pool.map(lambda a: np.dot(a, a), arrays))
        yield f"numpy's max of float32 in {many} threads", total, lambda: list(pool.map(np.max, arrays))


def multiplying_fp32() -> Ways:
    """Square matrices, by numpy's BLAS and by ONNX Runtime."""
    for size in SIZES:
        left, right = np.ones((size, size), np.float32), np.ones((size, size), np.float32)
        yield f"numpy's matmul, {size} x {size}", _operations(size), lambda a=left, b=right: a @ b  # type: ignore[misc]
        if session := _session(size, np.dtype(np.float32)):
            yield f"ONNX Runtime's MatMul, {size} x {size}", _operations(size), session


def multiplying_int8() -> Ways:
    """Square matrices, by ONNX Runtime and by torch."""
    for size in SIZES:
        if session := _session(size, np.dtype(np.uint8)):
            yield f"ONNX Runtime's MatMulInteger, {size} x {size}", _operations(size), session
        if step := _torch(size):
            yield f"torch's int8 matmul, {size} x {size}", _operations(size), step


def _operations(size: int) -> float:
    return 2.0 * size**3  # a multiplication and an addition for each pair


def _session(size: int, dtype: np.dtype[Any]) -> Step | None:
    """One product in ONNX Runtime, whose right side is a constant as weights are."""
    try:
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return None
    integer = dtype == np.uint8
    left, out = (TensorProto.UINT8, TensorProto.INT32) if integer else (TensorProto.FLOAT, TensorProto.FLOAT)
    weights = numpy_helper.from_array(np.ones((size, size), np.int8 if integer else np.float32), "weights")
    node = helper.make_node("MatMulInteger" if integer else "MatMul", ["left", "weights"], ["out"])
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("left", left, [size, size])],
        [helper.make_tensor_value_info("out", out, [size, size])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {"left": np.ones((size, size), dtype)}
    return lambda: session.run(None, values)


def _torch(size: int) -> Step | None:
    try:
        import torch
    except ImportError:
        return None
    left = torch.ones((size, size), dtype=torch.int8)
    right = torch.ones((size, size), dtype=torch.int8)
    step = getattr(torch, "_int_mm", None)  # the only product of int8 that torch has on CPU
    if step is None:
        return None
    try:
        step(left, right)
    except (RuntimeError, NotImplementedError):
        return None
    return lambda: step(left, right)


if __name__ == "__main__":
    main()
