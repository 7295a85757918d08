"""Memory of a host or a device that is bound to a session's inputs and outputs without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from ..plan import QUERIES


@dataclass(frozen=True)
class DeviceArray:
    """Contiguous memory on `device`; `owner` keeps it allocated."""

    device: str
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: object


Bindable = Union[NDArray[Any], DeviceArray]
Arrays = Mapping[str, NDArray[Any]]
Bindables = Mapping[str, Bindable]


class Binding:
    """Memory bound to a session once; a run reads and writes it in place.

    The binding keeps the memory alive. Arrays must be C-contiguous; an output may be the memory of an input where the
    graph reads that input before it writes the output.
    """

    def __init__(self, session: Any, inputs: Bindables, outputs: Bindables) -> None:
        self._binding = session.io_binding()
        self._run = session.run_with_iobinding
        self._keep = (dict(inputs), dict(outputs))
        for name, memory in inputs.items():
            self._bind_input(name, memory)
        for name, memory in outputs.items():
            self._binding.bind_output(name, *_place(name, memory))
        # With a device, a host's input is copied when it is bound, so that what changes must be bound again.
        devices = any(isinstance(memory, DeviceArray) for memory in (*inputs.values(), *outputs.values()))
        self._changing = [name for name, memory in inputs.items() if not isinstance(memory, DeviceArray) and devices]
        self._fresh = True

    def run(self) -> None:
        """One run of the graph. Raises what ONNX Runtime raises."""
        if not self._fresh:
            for name in self._changing:
                self._bind_input(name, self._keep[0][name])
        self._fresh = False
        self._run(self._binding)

    def _bind_input(self, name: str, memory: Bindable) -> None:
        self._binding.bind_input(name, *_place(name, memory))


def _place(name: str, memory: Bindable) -> tuple[str, int, Any, tuple[int, ...], int]:
    """Device, its number, element type, shape and address, as IOBinding takes them."""
    if isinstance(memory, DeviceArray):
        return memory.device, 0, memory.dtype.type, memory.shape, memory.address
    if not memory.flags["C_CONTIGUOUS"]:
        raise ValueError(f"{name} is not contiguous")
    return "cpu", 0, memory.dtype.type, memory.shape, int(memory.ctypes.data)


def pad(rows: Sequence[Sequence[int]], limit: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(ids [rows, width], lengths [rows]): zeros at the right, at most `limit` wide, which no row exceeds."""
    lengths = np.array([len(row) for row in rows], np.int32)
    width = int(lengths.max())
    if width % QUERIES == 1 and width < limit:
        width += 1
    ids = np.zeros((len(rows), width), np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
    return ids, lengths
