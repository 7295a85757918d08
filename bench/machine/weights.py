"""What an ONNX file's weights cost: the bytes that one run must read, and the numbers that its products multiply by.

Read from the graph alone; external data is not loaded. A matrix of which single rows are gathered (an embedding) is not
read as a whole, unless a product uses it too. It must not know models, batches or machines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRODUCTS = frozenset({
    "MatMul", "Gemm", "Conv", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedMatMul",
    "FusedGemm", "QLinearMatMul", "MatMulNBits", "QGemm",
})  # fmt: skip
# Operators whose result is their first input in another form.
PASSING = frozenset({"DequantizeLinear", "QuantizeLinear", "Transpose", "Cast", "Reshape", "Identity", "Unsqueeze"})
ROWS = frozenset({"Gather", "GatherBlockQuantized"})
BITS_PACKED = "MatMulNBits"
MATRIX = 2  # dimensions
BITS_OF_INTEGERS = 8
# Bits of an element by TensorProto's data type.
BITS: Mapping[int, int] = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 16: 16,
    17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4,
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """Of one run: `bytes` read, and `numbers` that each row of the products is multiplied by.

    `integers`: most of these are of eight bits or fewer.
    """

    bytes: float
    numbers: float
    integers: bool

    def __add__(self, other: Weights) -> Weights:
        integers = self.integers if self.numbers >= other.numbers else other.integers
        return Weights(self.bytes + other.bytes, self.numbers + other.numbers, integers)


NONE = Weights(0.0, 0.0, False)


def read_weights(path: Path) -> Weights:
    """The weights of the graph in a file."""
    import onnx

    return weights_of(onnx.load(str(path), load_external_data=False).graph)


def weights_of(graph: Any) -> Weights:
    """The weights of an ONNX graph."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    whole = {name for node in graph.node for name in _read_whole(node) if name in tensors}
    numbers = integer = 0.0
    for node in graph.node:
        for tensor in _factors(node, tensors, makers):
            count = _count(node, tensor)
            numbers += count
            integer += count if BITS.get(tensor.data_type, 0) <= BITS_OF_INTEGERS else 0.0
    size = sum(math.prod(tensors[name].dims) * BITS.get(tensors[name].data_type, 0) / 8 for name in whole)
    return Weights(size, numbers, integers=integer > numbers / 2)


def _read_whole(node: Any) -> list[str]:
    return list(node.input[1:] if node.op_type in ROWS else node.input)


def _factors(node: Any, tensors: Mapping[str, Any], makers: Mapping[str, Any]) -> list[Any]:
    """The matrices of weights in a product."""
    if node.op_type not in PRODUCTS:
        return []
    found = (_source(name, tensors, makers) for name in node.input[:4])
    return [tensor for tensor in found if tensor is not None and len(tensor.dims) >= MATRIX][:1]


def _source(name: str, tensors: Mapping[str, Any], makers: Mapping[str, Any]) -> Any | None:
    """The tensor that NAME is, in whatever form; None for what is computed of inputs."""
    while name not in tensors:
        maker = makers.get(name)
        if maker is None or maker.op_type not in PASSING:
            return None
        name = maker.input[0]
    return tensors[name]


def _count(node: Any, tensor: Any) -> float:
    """Numbers in the matrix; a packed one holds several in a byte, and says its size in attributes."""
    if node.op_type == BITS_PACKED:
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        return float(sizes["K"] * sizes["N"])
    return float(math.prod(tensor.dims))
