"""ONNX Runtime sessions of a generation model on CPU, memory that is bound to them, and what this machine can run."""

from __future__ import annotations

import ctypes
import hashlib
import math
import mmap
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import ModelDamaged, ProcessorUnsuited, ProviderMissing, RuntimeTooOld
from .device_memory import DeviceArray
from .plan import QUERIES
from .spec import EngineSpec, OperatorLibrary, version_numbers

# The name a caller uses -> ONNX Runtime's execution provider.
PROVIDERS = {"CPU": "CPUExecutionProvider", "CUDA": "CUDAExecutionProvider"}

# Threads that wait for the next operator spin this long before they sleep. 20 gain 10 to 30 % on exclusive cores, and
# cost nothing on shared ones. 100 gain some more, and lose as much if another program runs.
SPIN_MICROSECONDS = 20

CPUINFO = Path("/proc/cpuinfo")
ELSEWHERE = "Export the model on this machine, or set cpu_runtime to onnxruntime"
# mmap has no name for it before Python 3.13. It keeps a large reservation from being refused.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


@dataclass(frozen=True)
class SessionSettings:
    """How a model's sessions run.

    `threads` is the number of threads of each operator; 0 means one per core. `runtime` is the runtime on CPU; None
    means the one that engine.json names, if it is available. `operators` is a library of operators for ONNX Runtime;
    without it, the graphs' own definitions of these operators run. `device_id` is the number of the GPU.
    """

    threads: int = 0
    provider: str = "CPU"
    runtime: str | None = None
    operators: Path | None = None
    device_id: int = 0


def check_machine(spec: EngineSpec, settings: SessionSettings) -> None:
    """Refuse a model that can't run here. Raises RuntimeTooOld or ProviderMissing."""
    onnxruntime = load_onnxruntime()
    if version_numbers(onnxruntime.__version__) < version_numbers(spec.minimum_onnxruntime):
        raise RuntimeTooOld(
            f"onnxruntime {onnxruntime.__version__} is installed; the model needs {spec.minimum_onnxruntime} or later",
            f"pip install 'onnxruntime>={spec.minimum_onnxruntime}'",
        )
    if settings.provider not in PROVIDERS:
        raise ProviderMissing(f"provider {settings.provider!r} is unknown", f"Choose one of {', '.join(PROVIDERS)}")
    available = onnxruntime.get_available_providers()
    if PROVIDERS[settings.provider] not in available:
        raise ProviderMissing(
            f"this onnxruntime has no {PROVIDERS[settings.provider]} (it has {', '.join(available)})",
            "Install onnxruntime-gpu in the place of onnxruntime, or use the provider CPU",
        )


def check_products(spec: EngineSpec, cpuinfo: Path = CPUINFO) -> None:
    """Raise ProcessorUnsuited if ONNX Runtime's own operators get the model's matrix products wrong on this CPU."""
    if spec.needs_vnni and not multiplies_bytes_exactly(cpuinfo):
        raise ProcessorUnsuited(
            "this processor has no VNNI instructions, without which ONNX Runtime's products of 8-bit weights overflow",
            "Use native operators, export the model on such a processor, which gives it smaller weights, or in fp32",
        )


def multiplies_bytes_exactly(cpuinfo: Path = CPUINFO) -> bool:
    """Whether ONNX Runtime adds u8 x s8 products without overflow: on all but x86 processors without VNNI."""
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), None)
    return flags is None or bool({"avx512_vnni", "avx_vnni"} & set(flags))


def operators_refusal(library: OperatorLibrary | None) -> tuple[str, str] | None:
    """Return why the native operators beside a model can't run it here, and a remedy; None if they can.

    Raises ProviderMissing if HFX_NATIVE_KERNELS does not name kernels.
    """
    if library is None:
        return "the model has no native operators", "Export it again with --cpu-runtime native"
    # An incomplete library could crash the process, so its hash is compared before it is loaded.
    if hashlib.sha256(library.path.read_bytes()).hexdigest() != library.sha256:
        return f"{library.path.name} is not the file that was exported", "Copy or export the model again"
    try:
        loaded = ctypes.CDLL(str(library.path))
        kernels, refusal = loaded.hfx_native_kernels, loaded.hfx_native_refusal
    except (OSError, AttributeError) as error:  # for another system or architecture, or another library
        return f"{library.path.name} can't be loaded ({error})", ELSEWHERE
    kernels.restype = refusal.restype = ctypes.c_char_p
    name, reason = kernels(), refusal().decode().removeprefix("hfx: ")
    if name == b"?":
        raise ProviderMissing(reason, "Change it, or leave it out")
    return None if name else (reason, ELSEWHERE)


def _copies_weights() -> bool:
    """Return whether decoders may copy their weights into huge pages.

    With HFX_HUGE_PAGES=0 they read the mapped file, whose pages several servers share. Raises ProviderMissing for
    values other than 0 and 1.
    """
    wanted = os.environ.get("HFX_HUGE_PAGES", "1")
    if wanted not in ("0", "1"):
        raise ProviderMissing(f"HFX_HUGE_PAGES is {wanted!r}, which is neither 0 nor 1", "Set it to 0, or leave it out")
    return wanted == "1"


@contextmanager
def _huge_pages(operators: Path | None) -> Iterator[None]:
    """Have native operators copy the weights of sessions that are opened meanwhile into huge pages."""
    switch = None if operators is None else getattr(ctypes.CDLL(str(operators)), "hfx_huge_pages", None)
    if switch is None:  # no library, or one of an earlier version
        yield
        return
    switch(1)
    try:
        yield
    finally:
        switch(0)


def open_session(model: Path, settings: SessionSettings, is_decoder: bool = False) -> Any:
    """Open an onnxruntime.InferenceSession of a file on the CPU. Native weights of a decoder are in huge pages.

    Raises ModelDamaged, or ProviderMissing for a wrong HFX_HUGE_PAGES.
    """
    with _huge_pages(settings.operators if is_decoder and _copies_weights() else None):
        return new_session(model, session_options(settings), [PROVIDERS["CPU"]])


def new_session(model: Path, options: Any, providers: list[Any]) -> Any:
    """Return an onnxruntime.InferenceSession of a file. Raises ModelDamaged, whose cause is ONNX Runtime's error."""
    try:
        session = load_onnxruntime().InferenceSession(str(model), options, providers=providers, enable_fallback=0)
    except Exception as error:  # its exceptions have no common class below Exception
        raise ModelDamaged(f"onnxruntime can't load {model}: {error}") from error
    # This frees the memory in which the functions of native operators unpacked the weights: the 624 MB of the decoder
    # of Flan-T5-base become 212.
    trim_heap()
    return session


def session_options(settings: SessionSettings) -> Any:
    """Return SessionOptions that run one operator at a time, with all threads inside it."""
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    if settings.operators:
        options.register_custom_ops_library(str(settings.operators))
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    return options


def load_onnxruntime() -> Any:
    """Import onnxruntime, without its telemetry."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    return onnxruntime


Bindable = Union[NDArray[Any], DeviceArray]
Arrays = Mapping[str, NDArray[Any]]
Bindables = Mapping[str, Bindable]


class HostNet:
    """An open graph whose memory is on the host. `inputs` has the shapes of its inputs by name."""

    def __init__(self, session: Any) -> None:
        self.session, self.inputs = session, input_shapes(session)

    def bind(self, inputs: Bindables, outputs: Bindables, captured: bool = False) -> Binding:
        """Bind arrays to a run. No run on the host is captured."""
        return Binding(self.session, inputs, outputs)


class Binding:
    """Arrays that are bound to a session once, and that each run (`run` or `begin`) reads and writes in place.

    The binding keeps the memory alive. Arrays must be C-contiguous. An output may be the memory of an input if the
    graph reads this input before it writes the output. A run raises what ONNX Runtime raises.
    """

    captured = False  # whether runs replay a CUDA graph

    def __init__(self, session: Any, inputs: Bindables, outputs: Bindables) -> None:
        self._binding, self._run = session.io_binding(), session.run_with_iobinding
        self._keep = (inputs, outputs)
        for name, array in inputs.items():
            self._binding.bind_input(name, *host_place(name, array))
        for name, array in outputs.items():
            self._binding.bind_output(name, *host_place(name, array))

    def run(self) -> None:
        """Run the graph once on the bound arrays."""
        self._run(self._binding)

    begin = run

    def finish(self) -> None:
        """Do nothing: a run that was begun is over."""

    drop = finish


def input_shapes(session: Any) -> Mapping[str, Sequence[object]]:
    """Return the shapes of the inputs of a session by name."""
    return {tensor.name: tensor.shape for tensor in session.get_inputs()}


def host_place(name: str, array: Any) -> tuple[str, int, Any, tuple[int, ...], int]:
    """Return the device, its number, the element type, the shape and the address, as IOBinding takes them."""
    if not array.flags["C_CONTIGUOUS"]:
        raise ValueError(f"{name} is not contiguous")
    return "cpu", 0, array.dtype.type, array.shape, int(array.ctypes.data)


def pad(rows: Sequence[Sequence[int]], limit: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return (ids [rows, width], lengths [rows]), padded with zeros at the right to at most `limit` tokens.

    No row may exceed `limit`.
    """
    lengths = np.array([len(row) for row in rows], np.int32)
    width = int(lengths.max())
    if width % QUERIES == 1 and width < limit:
        width += 1
    ids = np.zeros((len(rows), width), np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
    return ids, lengths


def trim_heap() -> None:
    """Give freed memory back to the system: glibc's allocator would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Reserved:
    """A zeroed array of `shape` in its own memory, whose pages are allocated when they are first written."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        kind: np.dtype[Any] = np.dtype(dtype)
        size = max(math.prod(shape) * kind.itemsize, 1)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._pages = mmap.mmap(-1, size, flags=flags)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # The used parts of a cache are scattered: with huge pages, their neighbours would be allocated, too.
            self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        self.array: NDArray[Any] = np.frombuffer(self._pages, kind, math.prod(shape)).reshape(shape)

    def release(self, start: int, stop: int) -> None:
        """Free the pages that lie wholly within elements [start, stop) of the flattened array; they read as zeros."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        item = self.array.itemsize
        first = -(-start * item // mmap.PAGESIZE) * mmap.PAGESIZE
        last = stop * item // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)
