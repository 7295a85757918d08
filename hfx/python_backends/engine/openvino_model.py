"""A graph in OpenVINO: read, compiled, and run on memory that it shares with numpy.

Owns the calls of OpenVINO; knows nothing of what the arrays mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ModelDamaged
from .openvino_check import check_model
from .openvino_package import core, import_openvino
from .paged_attention import use_pages
from .sessions import SessionSettings
from .spec import EngineSpec

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
            use_pages(model, spec.heads, spec.head_dim)
            self._compiled = core().compile_model(model, DEVICE, properties(spec, settings))
        except (RuntimeError, ValueError) as error:
            raise ModelDamaged(f"openvino can't load {path}: {error}", "Export the model again") from error
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
