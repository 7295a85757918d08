"""A graph in OpenVINO: the package, reading, checking and compiling a file, and runs on memory shared with numpy."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelDamaged
from ..memory import Reserved
from ..runner import SessionSettings
from ..spec import EngineSpec, version_numbers
from .paged_attention import CROSS, LONGEST, PREFIXES, SELF, VECTORS, use_pages


def import_openvino() -> Any:
    """The module. Raises ImportError."""
    # Its import starts a counter in the home directory and a client of Google Analytics; without the package it
    # takes an empty one of its own.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


@cache
def core() -> Any:
    """The process's one core, which is never freed. Raises ImportError.

    The CPU plugin gives the thread that loads it a stack for signal handlers and unmaps it with its last user, from
    whatever thread that is: the next signal ends the process (OpenVINO 2026.4).
    """
    return import_openvino().Core()


def refusal(spec: EngineSpec) -> tuple[str, str] | None:
    """Why OpenVINO can't serve the model here, and what to do; None where it can."""
    if spec.openvino is None:
        return "the model has no files for OpenVINO", "Export it again with openvino installed"
    wanted = spec.openvino.minimum
    fix = f"pip install 'openvino>={wanted}'"
    try:
        installed: str = import_openvino().__version__
    except ImportError as error:
        return f"openvino can't be imported ({error})", fix
    if version_numbers(installed) < version_numbers(wanted):
        return f"openvino {installed} is installed; the model needs {wanted} or later", fix
    return None


TOKENS = frozenset({"input_ids", "position_ids"})
LAST = "last"
CHOICES = frozenset({"next_ids", "logits"})

Shapes = Mapping[str, tuple[int, ...]]


def check_model(path: Path, spec: EngineSpec, inputs: Shapes, outputs: Shapes) -> None:
    """Raise ModelDamaged unless inputs and outputs have the names and shapes of what `path` is in `spec`."""
    assert spec.openvino is not None
    wrong = _wrong_encoder(spec, inputs, outputs) if path == spec.openvino.encoder else _wrong(spec, inputs, outputs)
    if wrong:
        raise ModelDamaged(f"{path} is not the model that engine.json describes: {wrong}")


def _wrong(spec: EngineSpec, inputs: Shapes, outputs: Shapes) -> str:
    pages = TOKENS | _pages(SELF, spec.layers)
    allowed: list[Collection[str]] = [pages | {LAST}]
    if spec.has_encoder:
        last = {f"cross_{part}_last.{layer}" for part in "kv" for layer in range(spec.layers)}
        rows = {f"past_{part}_{layer}" for part in "kv" for layer in range(spec.layers)}
        source = _pages(CROSS, spec.layers) | last
        allowed = [pages | source, TOKENS | rows | source]
    if set(inputs) not in allowed:
        return f"it has the inputs {', '.join(sorted(inputs))}"
    if not set(outputs) >= CHOICES:
        return f"it has the outputs {', '.join(sorted(outputs))}"
    columns = outputs["logits"][-1]
    return "" if columns >= spec.vocab_size else f"it has logits of {columns} tokens, not {spec.vocab_size}"


def _wrong_encoder(spec: EngineSpec, inputs: Shapes, outputs: Shapes) -> str:
    if set(inputs) != {"input_ids", "lengths"} or set(outputs) != {f"cross_{layer}" for layer in range(spec.layers)}:
        return f"it has the inputs {', '.join(sorted(inputs))} and the outputs {', '.join(sorted(outputs))}"
    for name, (_, parts, heads, _, head_dim) in outputs.items():
        if (parts, heads, head_dim) != (2, spec.heads, spec.head_dim):
            return f"{name} has {parts} x {heads} heads of {head_dim}"
    return ""


def _pages(kind: str, layers: int) -> frozenset[str]:
    prefix = PREFIXES[kind]
    caches = {f"{prefix}{part}_cache.{layer}" for part in ("key", "value") for layer in range(layers)}
    return frozenset(caches | {prefix + name for name in (*VECTORS, LONGEST)})


DEVICE = "CPU"
UNKNOWN = -1


@dataclass(frozen=True)
class Port:
    """An input or output of a compiled model; a size that is not fixed is UNKNOWN."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class OpenVinoModel:
    """A compiled graph: its `inputs` and `outputs` by name, and requests that run it."""

    def __init__(self, path: Path, spec: EngineSpec, settings: SessionSettings) -> None:
        """Read and compile `path`. Raises ModelDamaged."""
        self._tensor = import_openvino().Tensor
        try:
            core().get_versions(DEVICE)  # loads the plugin, with which the core knows its operators when it reads
            model = core().read_model(str(path))
            use_pages(model, spec.kv_heads, spec.head_dim)
            self._compiled = core().compile_model(model, DEVICE, properties(spec, settings))
        except (RuntimeError, ValueError) as error:
            raise ModelDamaged(f"openvino can't load {path}: {error}") from error
        self.inputs = {port.get_any_name(): _port(port) for port in self._compiled.inputs}
        self.outputs = {port.get_any_name(): _port(port) for port in self._compiled.outputs}
        shapes = ({name: port.shape for name, port in ports.items()} for ports in (self.inputs, self.outputs))
        check_model(path, spec, *shapes)

    def request(self) -> InferRequest:
        """A request of its own inputs and outputs; one runs at a time."""
        return InferRequest(self._compiled.create_infer_request(), self._tensor, self.inputs, self.outputs)


class InferRequest:
    """Inputs that stay bound from run to run, and outputs that are valid until the next."""

    def __init__(self, request: Any, tensor: Any, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        self._request = request
        self._tensor = tensor
        self._inputs = {name: at for at, name in enumerate(inputs)}
        self._outputs = {name: at for at, name in enumerate(outputs)}
        self._bound: dict[str, NDArray[Any]] = {}  # a tensor does not keep the memory that it shares

    def bind(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inputs whose memory, contiguous, is read and may be written in place by each run from now on."""
        for name, array in arrays.items():
            self._request.set_input_tensor(self._inputs[name], self._tensor(array, shared_memory=True))
            self._bound[name] = array

    def run(self) -> None:
        """One run, without the interpreter's lock. Raises what OpenVINO raises."""
        # infer() keeps a failure to itself where there is one thread, and leaves the outputs of the run before.
        self._request.start_async(None, share_inputs=True)
        self._request.wait()

    def gives(self, name: str) -> bool:
        """Whether there is such an output."""
        return name in self._outputs

    def output(self, name: str) -> NDArray[Any]:
        """A view."""
        array: NDArray[Any] = self._request.get_output_tensor(self._outputs[name]).data
        return array


def properties(spec: EngineSpec, settings: SessionSettings) -> dict[str, str]:
    """How graphs are compiled: for one run at a time, and exactly.

    bf16, which newer processors have, would turn off the int8 products that they have too. Threads are not pinned to
    cores: a pinned one waits for its core while another process has it.
    """
    assert spec.openvino is not None
    chosen = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": "NO",
        "KV_CACHE_PRECISION": spec.openvino.kv_type,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(spec.openvino.group),
    }
    return {**chosen, "INFERENCE_NUM_THREADS": str(settings.threads)} if settings.threads else chosen


def _port(port: Any) -> Port:
    shape = tuple(size.get_length() if size.is_static else UNKNOWN for size in port.get_partial_shape())
    return Port(shape, np.dtype(port.get_element_type().to_dtype()))


LOGITS, SCALE = "logits", "logit_scale"


class LogitsReader:
    """For runs of at most `rows` rows, whose first `vocabulary` columns are tokens."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._scaled: NDArray[np.float32] = Reserved((rows, vocabulary), np.float32).array

    def read(self, request: InferRequest) -> NDArray[np.float32]:
        """[rows, vocabulary], valid until the next run or read."""
        logits: NDArray[np.float32] = request.output(LOGITS)[:, : self._vocabulary]
        if not request.gives(SCALE):
            return logits
        return np.multiply(logits, request.output(SCALE), out=self._scaled[: len(logits)])
