"""Where a step's time goes in OpenVINO: its counters by operator (PERF_COUNT), in the engine's own runs.

Owns the reading of counters and models. What a profile is, and the limits of the machine, are generation_profile.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.generation_cases import Batch, Model
from bench.generation_ours import open_engine, requests
from bench.generation_profile import Profile
from bench.peers.resident import Prepare

DECODER = "openvino_decoder.xml"
Run = list[tuple[str, float]]  # (operator, microseconds)


def open_way(model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """Cases are batches, answered with Profile."""
    return lambda case: partial(_profile, model, folder, case)


def _profile(model: Model, folder: str, case: Batch) -> Profile:
    runs: list[Run] = []
    steps: list[list[Run]] = []

    def observe(plan: Any, scheduler: object) -> None:
        if type(plan).__name__ == "Decode":
            steps.append(list(runs))
        runs.clear()

    with _counted(runs), open_engine(folder, case.rows * case.beams, case.rows, "openvino", observe) as engine:
        for handle in [engine.submit(request) for request in requests(case, model.start)]:
            handle.result()
    kept = [run for step in steps[1:] for run in step]  # the first prepares shapes
    spent: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for run in kept:
        for operator, microseconds in run:
            spent[operator] += microseconds  # type: ignore[assignment] # of floats too
            times[operator] += 1
    count = len(steps[1:])
    operators = tuple((name, total / count, times[name] / count) for name, total in spent.most_common())
    size, multiplications = _weights(Path(folder) / DECODER)
    return Profile(sum(spent.values()) / count, operators, size, multiplications * case.rows * case.beams)


@contextmanager
def _counted(runs: list[Run]) -> Iterator[None]:
    """Models that are compiled here count; `runs` gets what each run of the engine's took."""
    import openvino

    from hfx.python_backends.engine.openvino_model import InferRequest

    compile_model, run = openvino.Core.compile_model, InferRequest.run

    def counting(core: Any, model: Any, device: str, options: dict[str, str]) -> Any:
        return compile_model(core, model, device, {**options, "PERF_COUNT": "YES"})

    def read(request: InferRequest) -> None:
        run(request)
        found = request._request.profiling_info
        runs.append(
            [(each.node_type, each.real_time.total_seconds() * 1e6) for each in found if each.real_time.total_seconds()]
        )

    setattr(openvino.Core, "compile_model", counting)  # noqa: B010 - methods are replaced, which types don't allow
    setattr(InferRequest, "run", read)  # noqa: B010
    try:
        yield
    finally:
        setattr(openvino.Core, "compile_model", compile_model)  # noqa: B010
        setattr(InferRequest, "run", run)  # noqa: B010


def _weights(path: Path) -> tuple[int, int]:
    """(bytes, number) of the weights that a step multiplies with, by the model's matrix products."""
    import openvino

    size = number = 0
    for node in openvino.Core().read_model(str(path)).get_ops():
        weight = _constant(node.input_value(1).get_node()) if node.get_type_name() == "MatMul" else None
        if weight is not None:
            elements = int(np.prod(weight.get_output_shape(0)))
            number += elements
            size += elements * weight.get_element_type().bitwidth // 8
    return size, number


def _constant(node: Any) -> Any:
    """The largest constant that `node` is made of, where it is made of constants alone."""
    if node.get_type_name() == "Constant":
        return node
    found = [_constant(value.get_node()) for value in node.input_values()]
    if not found or any(each is None for each in found):
        return None
    return max(found, key=lambda each: int(np.prod(each.get_output_shape(0))))
