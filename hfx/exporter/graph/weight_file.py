"""One file of weights that several graphs read: tensors are written once, piece by piece, and referred to by offset.

Owns the file and its offsets; knows nothing of what the tensors mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

ALIGNMENT = 64  # a cache line: mapped tensors are read by vector instructions

Pieces = Callable[[], Iterable[NDArray[Any]]]


class WeightFile:
    """An open file of weights; `add` writes a tensor the first time that its name is seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("wb")
        self._known: dict[str, onnx.TensorProto] = {}

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, name: str, dtype: type[np.generic], shape: tuple[int, ...], pieces: Pieces) -> onnx.TensorProto:
        """The reference to tensor `name`, made of `pieces()` in order where it isn't in the file yet."""
        if name not in self._known:
            self._known[name] = self._write(name, np.dtype(dtype), shape, pieces)
        return self._known[name]

    def _write(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], pieces: Pieces) -> onnx.TensorProto:
        offset = self._file.tell()
        padding = -offset % ALIGNMENT
        self._file.write(b"\0" * padding)
        offset += padding
        for piece in pieces():
            self._file.write(np.ascontiguousarray(piece, dtype).data)
        length = self._file.tell() - offset
        if length != dtype.itemsize * int(np.prod(shape)):
            raise ValueError(f"{name} has {length} bytes, which are not {shape} of {dtype}")
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(dtype), dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._path.name), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        return tensor
