"""Where hfx's time goes by group of operators: ONNX Runtime's profile, and OpenVINO's counters (PERF_COUNT).

Both libraries are made to count before a model is opened, in a process of its own. Counting takes some time itself.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.child import Child, Run
from bench.peers import THREADS, Batch, Model, Way, open_way

ATTENTION, HEAD, SAMPLING, OTHER = "attention", "head and top-k", "sampling", "other operators"
BETWEEN, OUTSIDE = "between operators", "outside the runtime"
GROUPS = {
    "products": r"FullyConnected|Gemm|(?<!Batched)MatMul|Int8Linear|Int8Rows",
    ATTENTION: r"Attention|Softmax|BatchedMatMul",
    HEAD: r"TopK|ArgMax|Int8Head",
    "norms and activations": r"Norm|RMS|MVN|Gelu|Relu|Tanh|Add|Mul|Subtract|Subgraph|Eltwise|QuantizeLinear",
    "copies": r"Transpose|Reshape|Concat|Split|Gather|Reorder|Convert|Cast|Slice|Expand|Broadcast|squeeze|Flatten",
}
# What the engine does outside its runs, by the file of the code that is executed.
MODULES = {"beams": r"beam", SAMPLING: r"pick|sampl|processors|search", "copies": r"cache|memory|partition|rows"}
ENGINE, ENGINE_THREAD = "/python_backends/engine/", "generation-engine"
PICKING = ("log_softmax", "top_k")  # files of graphs
COLUMNS = ("ms", *GROUPS, OTHER, SAMPLING, "beams", BETWEEN, OUTSIDE)
SAMPLE_SECONDS, SWITCH_SECONDS = 5e-4, 1e-4
FEW_STEPS, NET_RUNS = 4, 50


def profile(way: Way, model: Model, batch: Batch) -> dict[str, float | None]:
    """Milliseconds by group of a step of generation, or of a run of the net. Raises PeerFailed."""
    with Child(open_profiled, way=way, model=model, folder=str(way.folder(model) or "")) as child:
        found = child.run(batch, warm=False).value
    return {group: value or None for group, value in found.items()}


def open_profiled(way: Way, model: Model, folder: str) -> Callable[[Batch], Run]:
    """In a process of its own; for one case, as sessions of ONNX Runtime count until they are read."""
    counting = Counting(model.vocabulary)
    open_case = open_way(way, model, folder, THREADS)

    def prepare(batch: Batch) -> Run:
        run = open_case(batch)
        if batch.net_only:
            run()
            return lambda: counting.milliseconds(lambda: [run() for _ in range(NET_RUNS)], run, NET_RUNS - 1)
        few = open_case(replace(batch, new=FEW_STEPS))  # prompts and first steps, which are not to be in the average
        few()
        return lambda: counting.milliseconds(run, few, batch.new - FEW_STEPS)

    return prepare


@dataclass
class Window:
    """Seconds of a call: of all, inside the runtimes' calls, of operators by group, and outside by group."""

    begin: int = field(default_factory=time.time_ns)
    end: int = 0
    all: float = 0.0
    runtime: float = 0.0
    operators: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)

    def groups(self) -> dict[str, float]:
        """Seconds by COLUMNS."""
        samples = self.samples or Counter({OUTSIDE: 1})  # none in a short call
        outside = (self.all - self.runtime) / samples.total()
        found = {group: self.operators[group] + outside * samples[group] for group in COLUMNS}
        return found | {"ms": self.all, BETWEEN: self.runtime - self.operators.total()}


class Counting:
    """Counts what the graphs do that are opened in this process from now on; a head has `vocabulary` columns."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._sessions: list[tuple[str, Any]] = []  # of ONNX Runtime, with the names of their graphs
        self._requests: dict[int, Request] = {}  # of OpenVINO
        self._named: dict[str, str] = {}  # the groups of OpenVINO's operators that their kind does not say
        self._window, self._running = Window(), False
        self._count_onnxruntime()
        self._count_openvino()

    def milliseconds(self, run: Run, less: Run, steps: int) -> dict[str, float]:
        """By group, what `run` takes beyond `less`, over `steps`."""
        windows = [self._measured(each) for each in (run, less)]
        self._add_profiles(windows)
        more, base = (window.groups() for window in windows)
        return {group: 1e3 * (more[group] - base[group]) / steps for group in COLUMNS}

    def _measured(self, run: Run) -> Window:
        before = self._openvino_totals()
        window = self._window = Window()
        begin = time.perf_counter()
        with self._sampled():
            run()
        window.all, window.end = time.perf_counter() - begin, time.time_ns()
        window.operators.update(self._openvino_totals())
        window.operators.subtract(before)
        return window

    @contextmanager
    def _sampled(self) -> Iterator[None]:
        """Count in which of the engine's files its thread is while no graph runs."""
        thread = next((each.ident for each in threading.enumerate() if each.name == ENGINE_THREAD), None)
        ended, window = threading.Event(), self._window

        def sample() -> None:
            while not ended.wait(SAMPLE_SECONDS):
                if not self._running:
                    window.samples[_group_of(sys._current_frames().get(thread or 0))] += 1

        sampler, before = threading.Thread(target=sample), sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        sampler.start()
        try:
            yield
        finally:
            ended.set()
            sampler.join()
            sys.setswitchinterval(before)

    @contextmanager
    def _in_runtime(self) -> Iterator[None]:
        begin, self._running = time.perf_counter(), True
        try:
            yield
        finally:
            self._running = False
            self._window.runtime += time.perf_counter() - begin

    def _count_onnxruntime(self) -> None:
        import onnxruntime

        counting, real = self, onnxruntime.InferenceSession
        folder = self._folder = tempfile.TemporaryDirectory(prefix="hfx-bench-")

        class Session(real):  # type: ignore[misc]
            def __init__(self, model: Any, options: Any, **arguments: Any) -> None:
                options.enable_profiling = True
                options.profile_file_prefix = f"{folder.name}/{len(counting._sessions)}"
                super().__init__(model, options, **arguments)
                name = "" if isinstance(model, bytes) else Path(model).stem
                counting._sessions.append((name, self))

            def run(self, *arguments: Any) -> Any:
                with counting._in_runtime():
                    return super().run(*arguments)

            def run_with_iobinding(self, *arguments: Any) -> None:
                with counting._in_runtime():
                    super().run_with_iobinding(*arguments)

        onnxruntime.InferenceSession = Session

    def _add_profiles(self, windows: list[Window]) -> None:
        """What ONNX Runtime's sessions did in each window."""
        for name, session in self._sessions:
            start = session.get_profiling_start_time_ns()
            for event in json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")):
                if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
                    continue
                at = start + 1000 * event["ts"]
                group = SAMPLING if name in PICKING else self._group(event["args"])
                for window in windows:
                    if window.begin <= at < window.end:
                        window.operators[group] += event["dur"] / 1e6

    def _group(self, node: dict[str, Any]) -> str:
        """Of a node of ONNX Runtime's profile."""
        inputs, outputs = (
            [shape for each in node[f"{side}_type_shape"] for shape in each.values()] for side in ("input", "output")
        )
        if any(shape and shape[-1] >= self._vocabulary for shape in inputs + outputs):
            return HEAD
        batched = node["op_name"] in ("MatMul", "FusedMatMul") and len(inputs) == 2 and len(inputs[1]) > 2
        return _group("BatchedMatMul" if batched else node["op_name"])

    def _count_openvino(self) -> None:
        import openvino

        counting, wait, start = self, openvino.InferRequest.wait, openvino.InferRequest.start_async
        compile_model = openvino.Core.compile_model

        def compile_counting(core: Any, model: Any, device: str, options: dict[str, str]) -> Any:
            compiled = compile_model(core, model, device, {**options, "PERF_COUNT": "YES"})
            counting._named |= dict.fromkeys(_fused_attention(compiled, model), ATTENTION)
            counting._named |= dict.fromkeys(_head(model), HEAD)
            return compiled

        def start_timed(request: Any, *arguments: Any, **named: Any) -> None:
            with counting._in_runtime():
                start(request, *arguments, **named)

        def wait_timed(request: Any) -> None:
            with counting._in_runtime():
                wait(request)
            known = counting._requests.get(id(request)) or Request(request)
            counting._requests[id(request)] = known
            known.runs += 1

        openvino.Core.compile_model = compile_counting
        openvino.InferRequest.start_async, openvino.InferRequest.wait = start_timed, wait_timed

    def _openvino_totals(self) -> Counter[str]:
        """Seconds of all runs so far."""
        found: Counter[str] = Counter()
        for request in self._requests.values():
            for name, operator, seconds in request.totals():
                kind = "BatchedMatMul" if operator == "MatMul" else operator
                found[self._named.get(name) or _group(kind)] += seconds  # type: ignore[assignment] # of floats too
        return found


class Request:
    """An infer request after its first run.

    OpenVINO gives an operator's average over all runs (2026.4). Where that never changes after the first one, it is a
    constant that was computed once.
    """

    def __init__(self, request: Any) -> None:
        self.runs = 0
        self._request = request
        self._first = {each.node_name: each.real_time for each in request.profiling_info}

    def totals(self) -> Iterator[tuple[str, str, float]]:
        """(name, operator, seconds) of all runs but the first."""
        for each in self._request.profiling_info:
            first = self._first[each.node_name]
            if each.real_time != first:
                yield each.node_name, each.node_type, (self.runs * each.real_time - first).total_seconds()


def _group(operator: str) -> str:
    return next((group for group, names in GROUPS.items() if re.search(names, operator, re.IGNORECASE)), OTHER)


def _group_of(frame: Any) -> str:
    """Of what a thread does, by the innermost of the engine's files."""
    while frame is not None and ENGINE not in frame.f_code.co_filename:
        frame = frame.f_back
    name = Path(frame.f_code.co_filename).stem if frame is not None else ""
    return next((group for group, names in MODULES.items() if re.search(names, name)), OUTSIDE)


def _fused_attention(compiled: Any, model: Any) -> Iterator[str]:
    """The names of the operators that were made of a softmax and others."""
    softmax = {node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == "Softmax"}
    for node in compiled.get_runtime_model().get_ops():
        facts = node.get_rt_info()
        made_of = str(facts["originalLayersNames"].value).split(",") if "originalLayersNames" in facts else ()
        if softmax.intersection(made_of):
            yield node.get_friendly_name()


def _head(model: Any) -> set[str]:
    """The names of the operators from a generator's logits on."""
    nodes = [port.get_node().input_value(0).get_node() for port in model.outputs if "logits" in port.get_names()]
    found: set[str] = set()
    while nodes:
        node = nodes.pop()
        if node.get_friendly_name() not in found:
            found.add(node.get_friendly_name())
            nodes += [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]
    return found
