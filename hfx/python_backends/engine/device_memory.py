"""Arrays in a GPU's memory, and copies within, to and from this memory, by CUDA's driver.

The driver is called directly because ONNX Runtime copies only whole tensors, needs a run of a graph for each copy, and
can't bind host memory to a captured CUDA graph.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import EngineError, ProviderMissing

LIBRARY = "libcuda.so.1"
HOST, DEVICE = 1, 2  # CUmemorytype


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


class Copier:
    """Copies to, from and within GPU number `device_id`. Raises ProviderMissing if the driver or the GPU is missing."""

    def __init__(self, device_id: int, library: str = LIBRARY) -> None:
        try:
            self._driver = ctypes.CDLL(library)
        except OSError as error:
            raise ProviderMissing(f"CUDA's driver can't be loaded ({error})", "Check the GPU's driver") from error
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        try:
            self._call("cuInit", 0)
            self._call("cuDeviceGet", ctypes.byref(device), device_id)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        except EngineError as error:
            raise ProviderMissing(error.message, "Check the GPU's driver and its number") from error

    def copy(self, source: Block, target: Block, width: int, lines: int, planes: int = 1) -> None:
        """Copy `width` bytes of each of `lines` lines of each of `planes` planes.

        Returns when the copy is complete. Raises EngineError.
        """
        sides: dict[str, int] = {}
        for name, block in (("src", source), ("dst", target)):
            address = "Host" if block.kind == HOST else "Device"
            sides |= {name + "MemoryType": block.kind, name + address: block.address}
            sides |= {name + "Pitch": block.pitch, name + "Height": block.height}
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuMemcpy3D_v2", ctypes.byref(_Copy3D(**sides, WidthInBytes=width, Height=lines, Depth=planes)))
        self._call("cuStreamSynchronize", None)

    def upload(self, source: NDArray[Any], target: int) -> None:
        """Copy a contiguous array on the host to the device address `target`. Raises EngineError."""
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(target), ctypes.c_void_p(source.ctypes.data), _size(source))

    def download(self, source: int, target: NDArray[Any]) -> None:
        """Copy from the device address `source` to a contiguous array on the host. Raises EngineError."""
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(target.ctypes.data), ctypes.c_uint64(source), _size(target))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise EngineError(f"{name} failed with CUDA's error {code}", "Look at the GPU's log and free memory")


def _size(array: NDArray[Any]) -> ctypes.c_size_t:
    return ctypes.c_size_t(array.nbytes)


@dataclass(frozen=True)
class Device:
    """The memory of GPU `number`, which ONNX Runtime calls `name` ("cuda")."""

    name: str
    number: int
    copier: Copier

    def allocate(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        """Return an array that is not cleared. Raises what ONNX Runtime raises if there is no memory left."""
        from onnxruntime import OrtValue

        kind: np.dtype[Any] = np.dtype(dtype)
        value = OrtValue.ortvalue_from_shape_and_type(list(shape), kind.type, self.name, self.number)
        return DeviceArray(self, value.data_ptr(), tuple(shape), kind, value)


@dataclass(frozen=True)
class DeviceArray:
    """Contiguous memory on `device`; `owner` keeps it allocated."""

    device: Device
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any

    def rows(self, first: int, count: int) -> DeviceArray:
        """Return the memory of `count` entries of the first axis, from entry `first` on."""
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        return replace(self, address=self.address + first * row, shape=(count, *self.shape[1:]))

    def download(self) -> NDArray[Any]:
        """Return a copy on the host. Raises EngineError."""
        target = np.empty(self.shape, self.dtype)
        self.device.copier.download(self.address, target)
        return target
