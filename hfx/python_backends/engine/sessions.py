"""ONNX Runtime sessions of a generation model, memory that is bound to them, and whether this machine can run it."""

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
from .device_memory import CAPTURING, NOT_CAPTURED, Device, DeviceArray, Graphs, Mirror
from .plan import QUERIES
from .spec import EngineSpec, OperatorLibrary, version_numbers

# The name a caller uses -> ONNX Runtime's execution provider.
PROVIDERS = {"CPU": "CPUExecutionProvider", "CUDA": "CUDAExecutionProvider"}

# Threads that wait for the next operator spin this long before they sleep. 20 gain 10 to 30 % on exclusive cores, and
# cost nothing on shared ones. 100 gain some more, and lose as much if another program runs.
SPIN_MICROSECONDS = 20

CAPTURE, GRAPH = "enable_cuda_graph", "gpu_graph_id"  # options of a provider and of a run
NO_ROOM = ("out of memory", "Failed to allocate memory")  # words of the messages of CUDA and of ONNX Runtime
ASSIGNMENT = "session.record_ep_graph_assignment_info"  # a session's option
SHOWN = 3  # nodes that a log line names
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
    onnxruntime = _onnxruntime()
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


def check_products(spec: EngineSpec, settings: SessionSettings, cpuinfo: Path = CPUINFO) -> None:
    """Raise ProcessorUnsuited if ONNX Runtime's own operators get the model's matrix products wrong here."""
    if spec.needs_vnni and settings.provider == "CPU" and not multiplies_bytes_exactly(cpuinfo):
        raise ProcessorUnsuited(
            "this processor has no VNNI instructions, without which ONNX Runtime's products of 8-bit weights overflow",
            "Use native operators, export the model on such a processor, which gives it 7-bit weights, or in fp32",
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
        kernels = ctypes.CDLL(str(library.path)).hfx_native_kernels
    except (OSError, AttributeError) as error:  # for another system or architecture, or another library
        return f"{library.path.name} can't be loaded ({error})", ELSEWHERE
    kernels.restype = ctypes.c_char_p
    name = kernels()
    if name == b"?":
        raise ProviderMissing(
            f"HFX_NATIVE_KERNELS is {os.environ['HFX_NATIVE_KERNELS']!r}, which names no kernels",
            "Set it to amx-int8, avx512-vnni, avx512-vnni-panels, avx-vnni, avx2 or none, or leave it out",
        )
    if not name:
        return "this processor has no AVX2 with FMA and F16C", ELSEWHERE
    return None


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
    """Open an onnxruntime.InferenceSession of a file. The session of a decoder has native weights in huge pages.

    Raises ModelDamaged, or ProviderMissing if the provider could not start, or for a wrong HFX_HUGE_PAGES.
    """
    with _huge_pages(settings.operators if is_decoder and _copies_weights() else None):
        return _opened(model, settings, _onnxruntime(), {})


def open_captured(model: Path, settings: SessionSettings, device: Device) -> tuple[Any, Graphs]:
    """Open a session that runs in the stream of `device` and, if the file allows it, captures CUDA graphs.

    If it captures none, the log says why. Raises ModelDamaged or ProviderMissing.
    """
    in_stream = {"user_compute_stream": str(device.copier.stream)}
    with CAPTURING:
        try:
            return _opened(model, settings, _onnxruntime(), {**in_stream, CAPTURE: "1"}), Graphs(model.name)
        except ModelDamaged as error:
            refused = str(error.__cause__)
        session = _opened(model, settings, _onnxruntime(), in_stream)
    graphs = Graphs(model.name)
    graphs.refuse(refused + nodes_elsewhere(session, PROVIDERS[settings.provider]))
    return session, graphs


def _opened(model: Path, settings: SessionSettings, onnxruntime: Any, on_gpu: dict[str, str]) -> Any:
    wanted = PROVIDERS[settings.provider]
    options, providers = session_options(settings, onnxruntime), [PROVIDERS["CPU"]]
    if settings.provider != "CPU":
        # Memory grows by what a run lacks. By default it is doubled, which takes room from other models on the GPU.
        own = {"device_id": str(settings.device_id), "arena_extend_strategy": "kSameAsRequested", **on_gpu}
        providers.insert(0, (wanted, own))  # type: ignore[arg-type]
        options.add_session_config_entry(ASSIGNMENT, "1")
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=providers, enable_fallback=0)
    except Exception as error:  # its exceptions have no common class below Exception
        if settings.provider != "CPU" and any(words in str(error) for words in NO_ROOM):  # they have no codes, either
            raise ProviderMissing(
                f"GPU {settings.device_id} has no room for the {model.stat().st_size:,} bytes of {model}: {error}",
                "End other programs on it",
            ) from error
        raise ModelDamaged(f"onnxruntime can't load {model}: {error}") from error
    # This frees the memory in which the functions of native operators unpacked the weights: the 624 MB of the decoder
    # of Flan-T5-base become 212.
    trim_heap()
    # A provider whose libraries can't be loaded is dropped by ONNX Runtime with no more than a log line.
    if wanted not in session.get_providers():
        raise ProviderMissing(
            f"onnxruntime could not start {wanted}: see its log", "Check the GPU's driver and libraries"
        )
    return session


def nodes_elsewhere(session: Any, provider: str) -> str:
    """Return words about the nodes of a session that `provider` does not run; none if ONNX Runtime can't tell."""
    assigned: Any = getattr(session, "get_provider_graph_assignment_info", tuple)()
    nodes = [node for part in assigned if part.ep_name != provider for node in part.get_nodes()]
    listed = ", ".join(f"{node.name} ({node.op_type})" for node in nodes[:SHOWN])
    return f" ({len(nodes)} nodes run on the CPU: {listed})" if nodes else ""


def session_options(settings: SessionSettings, onnxruntime: Any) -> Any:
    """Return SessionOptions that run one operator at a time, with all threads inside it."""
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


def _onnxruntime() -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    return onnxruntime


Bindable = Union[NDArray[Any], DeviceArray]
Arrays = Mapping[str, NDArray[Any]]
Bindables = Mapping[str, Bindable]


class Binding:
    """Memory that is bound to a session once, and that each run reads and writes in place.

    The binding keeps the memory alive. Arrays must be C-contiguous. An output may be the memory of an input if the
    graph reads this input before it writes the output.

    If some memory is on a device, the session must run in the device's stream (`open_captured`), and arrays on the host
    have copies there. A run brings all inputs there in one copy, and all outputs back in another, through page-locked
    memory; then it waits for the device. Inputs are always copied, because the positions change in each step. Scalars
    have no copy, as operators read them on the host.

    With `graphs`, the first run is captured, and later runs replay it, with the same values of the scalars. ONNX
    Runtime carries out a run that it captures several times, so outputs must not be the memory of inputs on a device,
    unless it is the same each time, as a KV cache is.
    """

    def __init__(self, session: Any, inputs: Bindables, outputs: Bindables, graphs: Graphs | None = None) -> None:
        self._binding = session.io_binding()
        self._run = session.run_with_iobinding
        self._keep = (dict(inputs), dict(outputs))
        arrays = (memory for memory in (*inputs.values(), *outputs.values()) if isinstance(memory, DeviceArray))
        self._device = next((memory.device for memory in arrays), None)
        self._graphs = graphs
        self._graph = NOT_CAPTURED if graphs is None else graphs.number()
        self._is_first = True
        self._options = None if self._device is None else _run_options(self._graph)
        self._sent, copies = self._mirror(inputs, skips_scalars=True)
        for name, memory in inputs.items():
            self._binding.bind_input(name, *_place(name, copies.get(name, memory)))
        self._received, copies = self._mirror(outputs)
        for name, memory in outputs.items():
            self._binding.bind_output(name, *_place(name, copies.get(name, memory)))

    @property
    def captured(self) -> bool:
        """Whether runs replay a captured graph."""
        return self._graph != NOT_CAPTURED

    def run(self) -> None:
        """Run the graph once. Raises what ONNX Runtime raises."""
        self.begin()
        self.finish()

    def begin(self) -> None:
        """Begin a run, of which a device may carry out a part after this call. `finish` or `drop` must follow."""
        if self._sent is not None:
            for name, array in self._sent.arrays.items():
                array[...] = self._keep[0][name]
            self._sent.upload()
        if self.captured and self._is_first:
            self._capture()
        else:
            self._start()
        self._is_first = False
        if self._received is not None:
            self._received.download()

    def drop(self) -> None:
        """Wait for the end of the run that was begun, and leave outputs on the host as they are."""
        if self._device is not None and (self._sent is not None or self._received is not None):
            self._device.copier.synchronize()

    def finish(self) -> None:
        """Wait for the outputs of the run that was begun."""
        self.drop()
        if self._received is not None:
            for name, array in self._received.arrays.items():
                self._keep[1][name][...] = array  # type: ignore[index]

    def _start(self) -> None:
        # A device that reads a scalar has a copy from the time of the binding, so each run binds scalars again.
        if self._device is not None and not self.captured:
            for name, memory in self._keep[0].items():
                if not memory.shape:
                    self._binding.bind_input(name, *_place(name, memory))
        self._run(self._binding, self._options)

    def _capture(self) -> None:
        """Run the graph for the first time. If it can't be captured, it is never captured."""
        assert self._graphs is not None
        try:
            with CAPTURING:
                self._start()
        except Exception as error:  # its exceptions have no common class below Exception
            self._graph, self._options = NOT_CAPTURED, _run_options(NOT_CAPTURED)
            self._start()  # if this fails as well, the cause was not the capture
            self._graphs.refuse(str(error))

    def _mirror(
        self, memory: Bindables, skips_scalars: bool = False
    ) -> tuple[Mirror | None, Mapping[str, DeviceArray]]:
        on_host = {name: each for name, each in memory.items() if not isinstance(each, DeviceArray)}
        layout = {name: (each.shape, each.dtype) for name, each in on_host.items() if each.shape or not skips_scalars}
        if self._device is None or not layout:
            return None, {}
        mirror = Mirror(self._device, layout)
        return mirror, mirror.copies


def _run_options(graph: int) -> Any:
    options = _onnxruntime().RunOptions()
    options.add_run_config_entry(GRAPH, str(graph))
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def _place(name: str, memory: Bindable) -> tuple[str, int, Any, tuple[int, ...], int]:
    """Return the device, its number, the element type, the shape and the address, as IOBinding takes them."""
    if isinstance(memory, DeviceArray):
        return memory.device.name, memory.device.number, memory.dtype.type, memory.shape, memory.address
    if not memory.flags["C_CONTIGUOUS"]:
        raise ValueError(f"{name} is not contiguous")
    return "cpu", 0, memory.dtype.type, memory.shape, int(memory.ctypes.data)


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
