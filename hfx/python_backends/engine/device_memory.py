"""Arrays in a GPU's memory, and copies within, to and from this memory, by CUDA's driver.

The driver is called directly because ONNX Runtime copies only whole tensors, needs a run of a graph for each copy, and
can't bind host memory to a captured CUDA graph. All work of a model is in one stream, so that copies and runs follow
each other without the host. The host waits only where it reads results (`Copier.synchronize`).
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import DeviceLost, EngineError, ProviderMissing

LIBRARY = "libcuda.so.1"
HOST, DEVICE = 1, 2  # CUmemorytype
NON_BLOCKING = 1  # CUstream_flags: the stream does not wait for the default stream, nor this for the stream
INVALID_VALUE, OUT_OF_MEMORY = 1, 2  # the CUresults after which a device still works
ALIGNMENT = 256  # bytes, like cudaMalloc's

# While a CUDA graph is captured, no thread may allocate memory, and so none may open a session.
CAPTURING = threading.Lock()

Layout = Mapping[str, tuple[tuple[int, ...], DTypeLike]]  # name -> (shape, dtype)


def _side(name: str) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = [(field, ctypes.c_size_t) for field in ("XInBytes", "Y", "Z", "LOD")]
    fields += [("MemoryType", ctypes.c_uint), ("Host", ctypes.c_void_p), ("Device", ctypes.c_uint64)]
    fields += [("Array", ctypes.c_void_p), ("Reserved", ctypes.c_void_p)]
    fields += [("Pitch", ctypes.c_size_t), ("Height", ctypes.c_size_t)]
    return [(name + field, kind) for field, kind in fields]


class _Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D of cuda.h."""

    _fields_ = [
        *_side("src"),
        *_side("dst"),
        *((name, ctypes.c_size_t) for name in ("WidthInBytes", "Height", "Depth")),
    ]


@dataclass(frozen=True)
class Block:
    """Memory that begins at `address`. Its lines are `pitch` bytes apart, and its planes are `height` lines apart."""

    address: int
    pitch: int
    height: int
    kind: int = DEVICE


class Memory:
    """Memory of `size` bytes that is freed with the last reference: on the device, or page-locked on the host."""

    def __init__(self, copier: Copier, size: int, on_host: bool = False) -> None:
        self.address = 0
        self._copier = copier
        self._free = "cuMemFreeHost" if on_host else "cuMemFree_v2"
        found = ctypes.c_uint64()
        arguments = (ctypes.byref(found), ctypes.c_size_t(size))
        if on_host:
            copier.call("cuMemHostAlloc", *arguments, 0)
        else:
            copier.call("cuMemAlloc_v2", *arguments)
        self.address = found.value

    def __del__(self) -> None:
        if self.address:
            self._copier.free(self._free, self.address)


class Copier:
    """Copies to, from and within GPU number `device_id`, one after the other in one `stream`.

    Raises ProviderMissing if the driver or the GPU is missing. Calls raise EngineError, or DeviceLost after an error
    from which only a new process recovers.
    """

    def __init__(self, device_id: int, library: str = LIBRARY) -> None:
        try:
            self._driver = ctypes.CDLL(library)
        except OSError as error:
            raise ProviderMissing(f"CUDA's driver can't be loaded ({error})", "Check the GPU's driver") from error
        device, self._context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self._number = device_id
        try:
            self._check("cuInit", 0)
            self._check("cuDeviceGet", ctypes.byref(device), device_id)
            self._check("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
            self.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        except EngineError as error:
            raise ProviderMissing(error.message, "Check the GPU's driver and its number") from error
        self.stream = stream.value  # its address
        self._stream = ctypes.c_void_p(self.stream)

    def copy(self, source: Block, target: Block, width: int, lines: int, planes: int = 1) -> None:
        """Copy `width` bytes of each of `lines` lines of each of `planes` planes, after the work before it.

        Memory on the host must stay unchanged until the next `synchronize`.
        """
        sides: dict[str, int] = {}
        for name, block in (("src", source), ("dst", target)):
            address = "Host" if block.kind == HOST else "Device"
            sides |= {name + "MemoryType": block.kind, name + address: block.address}
            sides |= {name + "Pitch": block.pitch, name + "Height": block.height}
        shape = _Copy3D(**sides, WidthInBytes=width, Height=lines, Depth=planes)
        self.call("cuMemcpy3DAsync_v2", ctypes.byref(shape), self._stream)

    def upload(self, source: int, target: int, size: int) -> None:
        """Copy `size` bytes from an address on the host, which must stay unchanged until the next `synchronize`."""
        addresses = ctypes.c_uint64(target), ctypes.c_void_p(source)
        self.call("cuMemcpyHtoDAsync_v2", *addresses, ctypes.c_size_t(size), self._stream)

    def download(self, source: int, target: int, size: int) -> None:
        """Copy `size` bytes to an address on the host, which has them after the next `synchronize`."""
        addresses = ctypes.c_void_p(target), ctypes.c_uint64(source)
        self.call("cuMemcpyDtoHAsync_v2", *addresses, ctypes.c_size_t(size), self._stream)

    def synchronize(self) -> None:
        """Wait until everything in the stream is done."""
        self.call("cuStreamSynchronize", self._stream)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver for this GPU. Raises EngineError or DeviceLost."""
        self._check("cuCtxSetCurrent", self._context)
        self._check(name, *arguments)

    def free(self, name: str, address: int) -> None:
        """Free memory by the function `name`. An error is ignored, as the memory is gone with the context."""
        self._driver.cuCtxSetCurrent(self._context)
        getattr(self._driver, name)(ctypes.c_uint64(address))

    def _check(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if not code:
            return
        failure = f"{name} failed with CUDA's error {code}"
        if code in (INVALID_VALUE, OUT_OF_MEMORY):
            raise EngineError(failure, "Look at the GPU's log and free memory")
        raise DeviceLost(
            f"{failure}: GPU {self._number} can't be used by this process any longer",
            "Look at the GPU's log (nvidia-smi, dmesg); hfx serve starts the model again",
        )


@dataclass(frozen=True)
class Device:
    """The memory of GPU `number`, which ONNX Runtime calls `name` ("cuda")."""

    name: str
    number: int
    copier: Copier

    def allocate(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        """Return an array that is not cleared. Raises ProviderMissing if there is not enough memory."""
        kind: np.dtype[Any] = np.dtype(dtype)
        memory = self.memory(math.prod(shape) * kind.itemsize)
        return DeviceArray(self, memory.address, tuple(shape), kind, memory)

    def memory(self, size: int, on_host: bool = False) -> Memory:
        """Return memory of `size` bytes. Raises ProviderMissing if there is not enough, or DeviceLost."""
        try:
            with CAPTURING:
                return Memory(self.copier, max(size, 1), on_host)
        except DeviceLost:
            raise
        except EngineError as error:
            place = f"the host of GPU {self.number}" if on_host else f"GPU {self.number}"
            raise ProviderMissing(
                f"{place} has no {size:,} bytes of memory left ({error.message})",
                "End other programs on it, or lower slots",
            ) from error


@dataclass(frozen=True)
class DeviceArray:
    """Contiguous memory on `device`; `owner` keeps it allocated."""

    device: Device
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any

    def __getitem__(self, rows: slice) -> DeviceArray:
        """Return the memory of consecutive entries of the first axis."""
        first, end, _ = rows.indices(self.shape[0])
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        return replace(self, address=self.address + first * row, shape=(end - first, *self.shape[1:]))

    def __array__(self, *options: Any, **more: Any) -> NDArray[Any]:
        """Return a copy on the host, for np.asarray. Raises EngineError."""
        return self.download()

    def reshape(self, shape: tuple[int, ...]) -> DeviceArray:
        """Return the same memory with another shape."""
        return replace(self, shape=shape)

    @property
    def nbytes(self) -> int:
        """The size of the memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def place(self) -> tuple[str, int, Any, tuple[int, ...], int]:
        """The device, its number, the element type, the shape and the address, as IOBinding takes them."""
        return self.device.name, self.device.number, self.dtype.type, self.shape, self.address

    def download(self) -> NDArray[Any]:
        """Return a copy on the host, after the work before it. Raises EngineError."""
        target = np.empty(self.shape, self.dtype)
        self.device.copier.download(self.address, target.ctypes.data, target.nbytes)
        self.device.copier.synchronize()
        return target


class Mirror:
    """Zeroed `arrays` of a `layout` in one page-locked block on the host, with copies of the same layout on `device`.

    The arrays are valid as long as the mirror. The host must not change them between `upload` and the stream's next
    synchronization.
    """

    def __init__(self, device: Device, layout: Layout) -> None:
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout.values()]
        ends = [0, *np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()]
        self._device, self._size = device, ends[-1]
        self._host = device.memory(self._size, on_host=True)
        self._copy = device.allocate((self._size,), np.uint8)
        block = np.frombuffer((ctypes.c_ubyte * self._size).from_address(self._host.address), np.uint8)
        block[:] = 0
        self.arrays: dict[str, NDArray[Any]] = {}
        self.copies: dict[str, DeviceArray] = {}
        for (name, (shape, dtype)), size, begin in zip(layout.items(), sizes, ends[:-1], strict=True):
            self.arrays[name] = block[begin : begin + size].view(dtype).reshape(shape)
            address = self._copy.address + begin
            self.copies[name] = replace(self._copy, address=address, shape=shape, dtype=np.dtype(dtype))

    def upload(self) -> None:
        """Begin to copy all arrays, if any, to the device. Raises EngineError."""
        if self._size:
            self._device.copier.upload(self._host.address, self._copy.address, self._size)

    def download(self) -> None:
        """Begin to copy all arrays, if any, from the device. Raises EngineError."""
        if self._size:
            self._device.copier.download(self._copy.address, self._host.address, self._size)


@dataclass
class DeviceCounts:
    """Counts what was done on a device. All of these are fields of Stats (core.py), too."""

    steps_captured: int = 0
    steps_ahead: int = 0
    prompt_runs: Counter[tuple[int, int]] = field(default_factory=Counter)
    prompts_captured: int = 0
    device_cache_bytes: int = 0
    capture_refusal: str = ""

    def copy(self) -> DeviceCounts:
        """Return a copy. Any thread may call this while another one counts."""
        return replace(self, prompt_runs=self.prompt_runs.copy())

    def restart(self) -> None:
        """Forget the runs so far."""
        self.steps_captured = self.prompts_captured = 0
        self.prompt_runs.clear()

    def count_prompts(self, shape: tuple[int, int], captured: bool) -> None:
        """Count a run of prompts or sources of this (rows, width), padding included."""
        self.prompt_runs[shape] += 1
        self.prompts_captured += captured
