"""Opens an ONNX file in one of two runtimes with one interface: ONNX Runtime and OpenVINO.

Neither runtime may report to its maker: their telemetry is turned off before they are imported.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .config import (
    OPERATORS,
    SHARED_NET,
    SKIPS_PADDING,
    Config,
    ConfigError,
    accelerators,
    integer,
    operators_of,
    parameters,
    providers,
    session_options,
)

LOG = logging.getLogger(__name__)
CPUINFO = Path("/proc/cpuinfo")
PRECISION = "INFERENCE_PRECISION_HINT"  # OpenVINO's property: the type that it computes in

Feed = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]

DTYPES: dict[str, Any] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
# ONNX's element types, as ONNX Runtime writes them.
ONNX_DTYPES: dict[str, Any] = {
    **{f"tensor({np.dtype(dtype).name})": dtype for dtype in DTYPES.values()},
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(string)": np.object_,
}
RESULT_SUFFIX = "/sink_port_0"  # OpenVINO appends it to the name of an ONNX output


@dataclass(frozen=True)
class Tensor:
    """An input or output of a graph; a dimension that is not fixed is -1."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


MOST_ROWS = 64  # of a run
# OpenVINO 2026.4 uses another kernel for products of 24 rows and more in bfloat16 with AMX, in models 32 wide.
MOST_ROWS_OF_TILES = 16


class Session(Protocol):
    """A graph that can be run; not for several threads at once.

    `skips_padding` says that nearly nothing is computed for the padding of a row that is shorter than other rows of its
    run. `most_rows` is the most rows of a run; in a larger run, a row's last bits may depend on the other rows.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    skips_padding: bool
    most_rows: int

    def run(self, feed: Feed, wanted: Sequence[str]) -> Outputs:
        """Return the outputs `wanted` for contiguous inputs; the arrays belong to the caller."""


class OnnxRuntimeSession:
    """A graph in ONNX Runtime."""

    most_rows = MOST_ROWS

    def __init__(self, session: Any, skips_padding: bool = False) -> None:
        self._session = session
        self.skips_padding = skips_padding
        self.inputs = tuple(map(_onnx_tensor, session.get_inputs()))
        self.outputs = tuple(map(_onnx_tensor, session.get_outputs()))
        self._strings = {tensor.name for tensor in self.inputs if tensor.dtype == np.object_}

    def run(self, feed: Feed, wanted: Sequence[str]) -> Outputs:
        """Return the outputs `wanted`; only these are computed."""
        if self._strings:
            feed = {name: _text(array) if name in self._strings else array for name, array in feed.items()}
        return dict(zip(wanted, self._session.run(list(wanted), feed), strict=True))


class OpenVinoSession:
    """A graph in OpenVINO, on CPU, with one infer request; `compile_model` compiles `model`."""

    skips_padding = False

    def __init__(
        self, model: Any, compile_model: Callable[[], Any], tensor_type: Any, most_rows: int = MOST_ROWS
    ) -> None:
        compiled = compile_model()
        self._compile_model = compile_model
        self.most_rows = most_rows
        self._request = compiled.create_infer_request()
        self._tensor = tensor_type
        self.inputs = tuple(map(_openvino_tensor, model.inputs))
        self.outputs = tuple(map(_openvino_tensor, model.outputs))
        # A port carries the names of all tensors that OpenVINO merged into it: a cast that costs nothing, an identity.
        self._input_at = {name: at for at, port in enumerate(compiled.inputs) for name in port.get_names()}
        self._output_at = {name: at for at, port in enumerate(compiled.outputs) for name in port.get_names()}

    def run(self, feed: Feed, wanted: Sequence[str]) -> Outputs:
        """Return the outputs `wanted`, copied out of the infer request's own memory."""
        try:
            return self._infer(feed, wanted)
        except Exception:
            # The graph keeps shapes of the failed run: the width of the last good run fails until another width runs,
            # even in a new infer request (2026.4). Compiling again takes 0.3 s for distilbert-base.
            self._request = self._compile_model().create_infer_request()
            raise

    def _infer(self, feed: Feed, wanted: Sequence[str]) -> Outputs:
        request = self._request
        # Setting the tensors one by one costs half as much as infer(feed).
        for name, array in feed.items():
            shared = array if array.flags.writeable else array.copy()
            request.set_input_tensor(self._input_at[name], self._tensor(shared, shared_memory=True))
        # With one thread, infer() does not report a failure and leaves the outputs of the previous run.
        request.start_async(None, share_inputs=True)
        request.wait()
        return {name: request.get_output_tensor(self._output_at[name]).data.copy() for name in wanted}


def open_session(config: Config, path: Path | str, kind: str = "CPU", device_id: int = 0) -> Session:
    """Open the ONNX file `path` in the session that `config` describes.

    `kind` is the kind of the instance: CPU, or GPU with its `device_id`. Raises ConfigError for a setting that can't be
    honoured; nothing falls back silently.
    """
    if not Path(path).is_file():
        raise ConfigError(f"{path} is not there: default_model_filename must name a file of the version folder")
    if kind == "CPU" and accelerators(config, "cpu"):
        return _open_openvino(config, path)
    return _open_onnxruntime(config, path, kind, device_id)


def _open_onnxruntime(config: Config, path: Path | str, kind: str, device_id: int) -> Session:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    chosen = providers(config, kind, device_id, onnxruntime.get_available_providers())
    options = session_options(config, onnxruntime)
    if library := operator_library(config, Path(path).parent):
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:  # ONNX Runtime's exceptions have no common class below Exception
            # Without VNNI the graph's own definitions would compute wrong sums of 8-bit weights.
            raise ConfigError(f"{error}: export the model on this machine, or with --cpu-runtime openvino") from error
    try:  # otherwise ONNX Runtime would print why a GPU can't be used, and go on with the CPU
        session = onnxruntime.InferenceSession(str(path), options, providers=chosen, enable_fallback=0)
    except RuntimeError as error:
        if kind == "CPU":
            raise
        names = ", ".join(name for name, _ in chosen[:-1])
        raise ConfigError(f"onnxruntime {onnxruntime.__version__} could not start {names}: {error}") from error
    # ONNX Runtime drops a provider whose libraries can't be loaded, with no more than a log line.
    lost = [name for name, _ in chosen if name not in session.get_providers()]
    if lost:
        raise ConfigError(f"onnxruntime {onnxruntime.__version__} could not start {', '.join(lost)}: see the log above")
    return OnnxRuntimeSession(session, library is not None and integer(config, SKIPS_PADDING, 0) != 0)


def operator_library(config: Config, folder: Path) -> Path | None:
    """Return the library of operators in `folder` that the configuration names; None if there is none to load.

    If the library can't be loaded, or has no kernels for this processor, the graph's own definitions of its operators
    run instead. Raises ConfigError if the processor does not compute these exactly, and if the file is not the one that
    was exported: an incomplete library could end the process.
    """
    name, digest = operators_of(config)
    if not name:
        return None
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise ConfigError(
            f"parameter {OPERATORS} is {name!r}, which is not a file beside the ONNX file: export it again"
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise ConfigError(f"{path} is not the file that was exported: copy or export the model again")
    reason = _operators_refusal(path)
    if not reason or SHARED_NET in parameters(config):  # the operators of adapters have no definitions
        return path
    if not multiplies_bytes_exactly():
        raise ConfigError(
            f"{reason}, and without VNNI instructions this processor adds 8-bit products wrongly: set TMPDIR to a "
            "folder that may hold programs, or export the model on this machine"
        )
    LOG.warning("%s: ONNX Runtime serves by the graph's own operators", reason)
    return None


def _operators_refusal(path: Path) -> str:
    """Return why the operators can't be used; empty if they can (as operators_refusal of ../engine/sessions.py)."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # another operating system or architecture, or a folder that may not hold programs
        return f"{path.name} can't be loaded ({error})"
    if not hasattr(library, "hfx_native_refusal"):  # of an earlier version
        return ""
    kernels, refusal = library.hfx_native_kernels, library.hfx_native_refusal
    kernels.restype = refusal.restype = ctypes.c_char_p
    return "" if kernels() else refusal().decode().removeprefix("hfx: ")


def _open_openvino(config: Config, path: Path | str) -> Session:
    for name, options in accelerators(config, "cpu"):
        if name != "openvino":
            raise ConfigError(f"cpu_execution_accelerator {name!r} is unknown; openvino can be used")
        if options:
            raise ConfigError("parameters of the openvino accelerator are not read: write parameters 'openvino.KEY'")
    openvino = _import_openvino()
    model, properties = _core().read_model(str(path)), openvino_properties(config)
    compile_model = partial(_core().compile_model, model, "CPU", properties)
    tiles = properties[PRECISION] == "bf16" and "amx_bf16" in (_flags() or ())
    return OpenVinoSession(model, compile_model, openvino.Tensor, MOST_ROWS_OF_TILES if tiles else MOST_ROWS)


def openvino_properties(config: Config) -> dict[str, str]:
    """Return OpenVINO's compile properties: exact arithmetic and least latency, unless "openvino.KEY" says otherwise.

    Threads are not pinned to cores: a pinned thread waits for its core while another process uses it. bfloat16 becomes
    float32 if the processor has no instructions for it: OpenVINO would emulate them on AVX512, 25 times as slow as
    float32.
    """
    properties = {PRECISION: "f32", "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": "NO"}
    threads = integer(config, "intra_op_thread_count", 0)
    if threads > 0:
        properties["INFERENCE_NUM_THREADS"] = str(threads)
    prefix = "openvino."
    given = parameters(config).items()
    properties |= {key[len(prefix) :]: value for key, value in given if key.startswith(prefix)}
    if properties[PRECISION] == "bf16" and not multiplies_bfloat16():
        LOG.warning("this processor has no bfloat16 instructions: the model is computed in float32")
        properties[PRECISION] = "f32"
    return properties


def multiplies_bfloat16() -> bool:
    """Whether the processor has the instructions for which OpenVINO computes in bfloat16 by default."""
    return "avx512_bf16" in (_flags() or ())


def multiplies_bytes_exactly() -> bool:
    """Whether products of 8-bit numbers are added without overflow: true except on x86 processors without VNNI."""
    flags = _flags()
    return flags is None or not {"avx512_vnni", "avx_vnni"}.isdisjoint(flags)


def _flags() -> list[str] | None:
    """Return the flags of an x86 processor; None on other processors."""
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.is_file() else ""
    return next((line.split() for line in text.splitlines() if line.startswith("flags")), None)


def _import_openvino() -> Any:
    # Importing openvino starts a counter in the home directory and a client of Google Analytics. Without the package
    # openvino_telemetry, it uses an empty substitute of its own.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise ConfigError(
            f"the model asks for OpenVINO, which can't be imported ({error}): install openvino, or remove "
            "cpu_execution_accelerator from the configuration"
        ) from None
    return openvino


@cache
def _core() -> Any:
    # The process has one core, which is never freed. The CPU plugin gives the thread that loads it a stack for signal
    # handlers, and unmaps the stack with its last user, on whatever thread that is; the next signal ends the process.
    return _import_openvino().Core()


def _onnx_tensor(node: Any) -> Tensor:
    shape = tuple(size if isinstance(size, int) else -1 for size in node.shape)
    if node.type not in ONNX_DTYPES:
        raise ConfigError(f"{node.name} has the type {node.type}, which can't be served")
    return Tensor(node.name, np.dtype(ONNX_DTYPES[node.type]), shape)


def _openvino_tensor(port: Any) -> Tensor:
    shape = tuple(size.get_length() if size.is_static else -1 for size in port.get_partial_shape())
    # The node's own name is the ONNX tensor's name; get_any_name() returns any of the names that share the port.
    name = port.get_node().get_friendly_name().removesuffix(RESULT_SUFFIX)
    return Tensor(name, np.dtype(port.get_element_type().to_dtype()), shape)


def _text(array: NDArray[Any]) -> NDArray[Any]:
    texts = [each.decode() if isinstance(each, bytes) else each for each in array.flat]
    return np.array(texts, dtype=np.object_).reshape(array.shape)
