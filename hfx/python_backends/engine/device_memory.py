"""Copies within a GPU's memory, and to it from the host, of parts that lie apart: by CUDA's driver.

ONNX Runtime copies whole tensors only, each in a run of a graph.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

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
    """Memory that begins at `address`: lines `pitch` bytes apart, and planes of them `height` lines apart."""

    address: int
    pitch: int
    height: int
    kind: int = DEVICE


class Copier:
    """Copies to the GPU number `device_id`. Raises ProviderMissing where there is no driver or no such GPU."""

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
        """Copy `width` bytes of `lines` lines of each of `planes`; done when this returns. Raises EngineError."""
        sides: dict[str, int] = {}
        for name, block in (("src", source), ("dst", target)):
            address = "Host" if block.kind == HOST else "Device"
            sides |= {name + "MemoryType": block.kind, name + address: block.address}
            sides |= {name + "Pitch": block.pitch, name + "Height": block.height}
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuMemcpy3D_v2", ctypes.byref(_Copy3D(**sides, WidthInBytes=width, Height=lines, Depth=planes)))
        self._call("cuStreamSynchronize", None)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise EngineError(f"{name} failed with CUDA's error {code}", "Look at the GPU's log and free memory")
