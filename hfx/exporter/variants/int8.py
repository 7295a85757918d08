"""Files of native operators on CPUs, in int8 and fp32; in int8 also run by their definitions as ONNX functions."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hfx import native
from hfx.exporter.mixed_precision import Precision
from hfx.exporter.runtime import Runtime, weight_levels, why_no_native
from hfx.exporter.variants.floats import OnnxRuntime
from hfx.exporter.variants.variant import Net, Source
from hfx.python_backends.onnxruntime.config import SKIPS_PADDING, operators_for


def copy_operators(folder: Path, skips_padding: bool) -> dict[str, str]:
    """Copy the libraries of native operators into `folder`, and return the parameters of NAME_net that name them."""
    named = dict[str, str]()
    for machine, library in native.libraries().items():
        if not (folder / library.name).exists():  # else a session may have it open
            shutil.copyfile(library, folder / library.name)
        values = library.name, hashlib.sha256(library.read_bytes()).hexdigest()
        named |= dict(zip(operators_for(machine), values, strict=True))
    return named | ({SKIPS_PADDING: "1"} if skips_padding else {})


@dataclass(frozen=True)
class Functions(OnnxRuntime):
    """The int8 file whose operators ONNX Runtime computes by their definitions."""

    name: ClassVar[str] = "int8-functions"
    precision: ClassVar[Precision] = "int8"
    file: ClassVar[str] = "model.int8.onnx"
    accuracy: ClassVar[str] = "int8"

    @property
    def levels(self) -> int:
        """Fewer on processors whose products of bytes overflow."""
        return weight_levels()

    def write(self, source: Source) -> Net:
        """Write the graph of operators."""
        path, quantized = source.row_wise
        return Net(self, path, record={"int8_weights": quantized.weights})


@dataclass(frozen=True)
class Native(Functions):
    """The same file with the native operators of hfx."""

    name: ClassVar[str] = "int8"
    runtime: ClassVar[Runtime] = "native"

    def missing(self) -> str:
        """Return why the native operators can't run here; empty if they can."""
        return why_no_native()

    def write(self, source: Source) -> Net:
        """Write the graph of operators, and copy their library."""
        path, quantized = source.row_wise
        operators = copy_operators(source.folder, quantized.skips_padding)
        return Net(self, path, operators, {"int8_weights": quantized.weights})


@dataclass(frozen=True)
class NativeFloats(Native):
    """The float32 file with the native operators of hfx, which give the same bits on every processor."""

    name: ClassVar[str] = "native-fp32"
    precision: ClassVar[Precision] = "fp32"
    file: ClassVar[str] = "model.onnx"
    accuracy: ClassVar[str] = "fp32"

    def write(self, source: Source) -> Net:
        """Write the graph of operators without quantized weights, and copy their library."""
        from hfx.exporter.encoder.graph.build import save
        from hfx.exporter.encoder.graph.linears import float_weights
        from hfx.exporter.quantize.encoder import row_source, row_wise

        path = source.folder / f"native.{self.math}.onnx"
        made = row_wise(source.graph, kept=float_weights(row_source(source.graph).graph), math=self.math)
        save(made.model, path)
        return Net(self, path, copy_operators(source.folder, made.skips_padding), {"cpu_math": self.math})
