"""One OpenVINO model in the making: inputs, small constants, weights, outputs."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import DTypeLike, NDArray
from openvino import opset16 as ops

Value = Any  # openvino.Output or openvino.Node: what an operator takes
Shape = Sequence[int]
ANY = -1  # a dimension that is known at run time


class OpenVinoGraph:
    """Collects a model; `save` writes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.memo: dict[tuple[str, ...], Any] = {}  # what the blocks of a graph share
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] = []
        self._arrays: list[NDArray[Any]] = []

    def input(self, name: str, dtype: DTypeLike | None, shape: Shape) -> Value:
        """An input of the model, shared where it is there already; without `dtype` the runtime chooses the type."""
        if name not in self._inputs:
            kind = openvino.Type.dynamic if dtype is None else openvino.Type(np.dtype(dtype))
            node = ops.parameter(list(shape), kind, name=name)
            node.output(0).set_names({name})
            self._inputs[name] = node
        return self._inputs[name].output(0)

    def output(self, name: str, value: Value) -> None:
        """Make `value` the output `name`."""
        result = ops.result(value)
        result.output(0).set_names({name})
        self._outputs.append(result)

    def const(self, value: float | Sequence[int] | NDArray[Any], dtype: DTypeLike) -> Value:
        """A small constant."""
        return ops.constant(np.asarray(value, dtype)).output(0)

    def weight(self, array: NDArray[Any], name: str) -> Value:
        """A large constant, whose memory is not copied."""
        array = np.ascontiguousarray(array)
        self._arrays.append(array)
        node = ops.constant(array, name=name, shared_memory=True)
        return node.output(0)

    def packed(self, array: NDArray[np.uint8], shape: Shape, name: str) -> Value:
        """A constant of unsigned 4-bit numbers of `shape`, packed two to a byte, the first in the low bits."""
        self._arrays.append(array)
        tensor = openvino.Tensor(array.reshape(-1), openvino.Shape(list(shape)), openvino.Type.u4)
        node = openvino.op.Constant(tensor)
        node.set_friendly_name(name)
        return node.output(0)

    def model(self) -> Any:
        """The openvino.Model so far."""
        return openvino.Model(self._outputs, list(self._inputs.values()), self.name)

    def save(self, path: Path) -> None:
        """Write the model to `path` (.xml) and its weights beside it (.bin). Raises OSError."""
        model = self.model()
        try:
            openvino.save_model(model, path, compress_to_fp16=False)
        except RuntimeError as error:  # a full disk, of which its streams say no more
            raise OSError(errno.EIO, f"OpenVINO could not write {path.name} ({error})") from error
