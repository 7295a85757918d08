"""Opens an ONNX file in ONNX Runtime, whose telemetry is turned off before it is imported."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    integer,
    operators_of,
    parameters,
    providers,
    session_options,
)

LOG = logging.getLogger(__name__)
CPUINFO = Path("/proc/cpuinfo")

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


@dataclass(frozen=True)
class Tensor:
    """An input or output of a graph; a dimension that is not fixed is -1."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Session(Protocol):
    """A graph that can be run; not for several threads at once.

    `skips_padding` says that nearly nothing is computed for the padding of a row that is shorter than other rows of its
    run.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    skips_padding: bool

    def run(self, feed: Feed, wanted: Sequence[str]) -> Outputs:
        """Return the outputs `wanted` for contiguous inputs; the arrays belong to the caller."""


class OnnxRuntimeSession:
    """A graph in ONNX Runtime."""

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


def open_session(config: Config, path: Path | str, kind: str = "CPU", device_id: int = 0) -> Session:
    """Open the ONNX file `path` in the session that `config` describes.

    `kind` is the kind of the instance: CPU, or GPU with its `device_id`. Raises ConfigError for a setting that can't be
    honoured; nothing falls back silently.
    """
    if not Path(path).is_file():
        raise ConfigError(f"{path} is not there: default_model_filename must name a file of the version folder")
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    chosen = providers(config, kind, device_id, onnxruntime.get_available_providers())
    options = session_options(config, onnxruntime)
    if library := operator_library(config, Path(path).parent):
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:  # ONNX Runtime's exceptions have no common class below Exception
            # Without VNNI the graph's own definitions would compute wrong sums of 8-bit weights.
            raise ConfigError(f"{error}: export the model on this machine, or in fp32") from error
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


def multiplies_bytes_exactly() -> bool:
    """Whether products of 8-bit numbers are added without overflow: true except on x86 processors without VNNI."""
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.is_file() else ""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), None)
    return flags is None or not {"avx512_vnni", "avx_vnni"}.isdisjoint(flags)


def _onnx_tensor(node: Any) -> Tensor:
    shape = tuple(size if isinstance(size, int) else -1 for size in node.shape)
    if node.type not in ONNX_DTYPES:
        raise ConfigError(f"{node.name} has the type {node.type}, which can't be served")
    return Tensor(node.name, np.dtype(ONNX_DTYPES[node.type]), shape)


def _text(array: NDArray[Any]) -> NDArray[Any]:
    texts = [each.decode() if isinstance(each, bytes) else each for each in array.flat]
    return np.array(texts, dtype=np.object_).reshape(array.shape)
