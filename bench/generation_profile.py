"""Where a step's time goes: ONNX Runtime's profile by operator, and the limits of the machine that it could reach.

Owns the reading of profiles and graphs. Knows no tables.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.generation_cases import THREADS, Batch, Model
from bench.generation_ours import requests
from bench.peers.resident import Prepare

LIMIT_SECONDS = 1.0
MEASURED_BYTES = 1 << 29
GEMM = (512, 1024, 4096)  # M, K, N


@dataclass(frozen=True)
class Profile:
    """A decode step: microseconds of its run, and of each operator: (name, microseconds, how often)."""

    run: float
    operators: tuple[tuple[str, float, float], ...]
    weight_bytes: int
    multiplications: int


@dataclass(frozen=True)
class Limits:
    """What the machine can do with THREADS threads: bytes a second from memory, int8 multiplications a second."""

    bytes_per_second: float
    multiplications_per_second: float


def open_way(model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """Cases are batches, answered with Profile, or None, answered with Limits."""

    def prepare(case: Batch | None) -> Any:
        return _limits if case is None else partial(_profile, model, folder, case)

    return prepare


def _profile(model: Model, folder: str, case: Batch) -> Profile:
    import onnxruntime

    opened: dict[str, Any] = {}
    real = onnxruntime.InferenceSession
    plans: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hfx-profile-") as scratch:

        def profiled(path: str, options: Any, **arguments: Any) -> Any:
            options.enable_profiling = True
            options.profile_file_prefix = f"{scratch}/{Path(path).stem}"
            opened[Path(path).name] = real(path, options, **arguments)
            return opened[Path(path).name]

        onnxruntime.InferenceSession = profiled
        try:
            from hfx.python_backends.engine.engine import Engine

            with Engine.open(
                folder,
                slots=case.rows * case.beams,
                max_queue=case.rows,
                threads=THREADS,
                observer=lambda plan, scheduler: plans.append(type(plan).__name__),
                runtime="onnxruntime",
            ) as engine:
                for handle in [engine.submit(request) for request in requests(case, model.start)]:
                    handle.result()
        finally:
            onnxruntime.InferenceSession = real
        decoder = next(name for name in opened if name.startswith("decoder"))
        events = json.loads(Path(opened[decoder].end_profiling()).read_text())
    runs = [plan for plan in plans if plan in ("Prefill", "Chunk", "Decode")]
    return _read(events, [number for number, plan in enumerate(runs) if plan == "Decode"], Path(folder) / decoder, case)


def _read(events: list[dict[str, Any]], steps: list[int], graph: Path, case: Batch) -> Profile:
    """The medians would be of too few runs: means over all steps but the first, which prepares shapes."""
    runs = sorted((event["ts"], event["dur"]) for event in events if event.get("name") == "model_run")
    kept = [runs[number] for number in steps[1:]]
    spent: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for event in events:
        is_kernel = event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
        if is_kernel and any(begin <= event["ts"] <= begin + length for begin, length in kept):
            spent[event["args"]["op_name"]] += event["dur"]
            times[event["args"]["op_name"]] += 1
    operators = tuple((name, total / len(kept), times[name] / len(kept)) for name, total in spent.most_common())
    size, multiplications = _weights(graph)
    rows = case.rows * case.beams
    return Profile(sum(length for _, length in kept) / len(kept), operators, size, multiplications * rows)


def _weights(graph: Path) -> tuple[int, int]:
    """(bytes, number) of the weights that a step multiplies with, by the graph's matrix products."""
    import onnx

    model = onnx.load(graph, load_external_data=False)
    known = {weight.name: weight for weight in model.graph.initializer}
    made_of = {
        output: node.input[0] for node in model.graph.node for output in node.output if node.op_type == "Transpose"
    }
    size = number = 0
    for node in model.graph.node:
        weight = known.get(made_of.get(node.input[1], node.input[1])) if "MatMul" in node.op_type else None
        if weight is None:
            continue
        elements = int(np.prod(weight.dims))
        size += elements * onnx.helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize
        number += elements * (2 if node.op_type == "MatMulNBits" else 1)  # two int4 weights a byte
    return size, number


def _limits() -> Limits:
    return Limits(_bandwidth(), _gemm())


def _bandwidth() -> float:
    import torch

    torch.set_num_threads(THREADS)
    data = torch.ones(MEASURED_BYTES // 4)
    return MEASURED_BYTES / _seconds(data.sum)


def _gemm() -> float:
    """The operator that the graphs use, on a product large enough to be bound by computation."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rows, depth, columns = GEMM
    random = np.random.default_rng(0)
    constants: dict[str, NDArray[Any]] = {
        "weight": random.integers(-127, 127, (depth, columns), dtype=np.int8),
        "scale": np.ones((), np.float32),
        "scales": np.ones(columns, np.float32),
        "zero": np.array(128, np.uint8),
    }
    node = helper.make_node(
        "MatMulIntegerToFloat", ["x", "weight", "scale", "scales", "zero"], ["y"], domain="com.microsoft"
    )
    graph = helper.make_graph(
        [node],
        "gemm",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [rows, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = random.integers(0, 255, (rows, depth), dtype=np.uint8)
    return rows * depth * columns / _seconds(lambda: session.run(None, {"x": x}))


def _seconds(run: Any) -> float:
    """The least of the calls in about a second: a limit is what is reached undisturbed."""
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < LIMIT_SECONDS:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
