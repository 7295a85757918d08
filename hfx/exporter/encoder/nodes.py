"""Nodes and constants that are added to the ONNX graph of an encoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper


class NodeList:
    """Nodes and constants in the making, in order; their names begin with `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def const(self, name: str, value: ArrayLike) -> str:
        """The name of a constant, made once."""
        full = self.prefix + name
        if full not in self.constants:
            self.constants[full] = numpy_helper.from_array(np.asarray(value), full)
        return full

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Append a node, which has the name of its output, and return that."""
        name = self.prefix + output
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name


def rename(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    """Give the tensor `old` another name in all `nodes`."""
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
