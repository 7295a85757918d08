"""The float32 file on CPUs, run by ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hfx.exporter.mixed_precision import Precision
from hfx.exporter.runtime import online_fusions
from hfx.exporter.variants.variant import Net, Source, Variant
from hfx.python_backends.engine.sessions import SPIN_MICROSECONDS
from hfx.python_backends.onnxruntime.config import ALLOW_SPINNING, SPIN_DURATION


def thread_counts(threads: int) -> dict[str, str]:
    """Return the parameters of NAME_net for the threads of a runtime on CPUs."""
    return {"intra_op_thread_count": str(threads), "inter_op_thread_count": "1"}


def write_floats(source: Source) -> Path:
    """Write the float32 file, unless another variant has written it."""
    from hfx.exporter.encoder.graph.build import inlined, save

    path = source.folder / "floats.onnx"
    if not path.exists():
        save(inlined(source.graph), path)
    return path


@dataclass(frozen=True)
class OnnxRuntime(Variant):
    """A file that ONNX Runtime runs. Threads spin only briefly: other models and the tokenizer need the cores."""

    def settings(self, threads: int) -> dict[str, str]:
        """Return the numbers of threads, and how long they spin."""
        return {**thread_counts(threads), ALLOW_SPINNING: "0", SPIN_DURATION: str(SPIN_MICROSECONDS)}


@dataclass(frozen=True)
class Floats(OnnxRuntime):
    """The float32 file, which any processor runs."""

    name: ClassVar[str] = "fp32"
    precision: ClassVar[Precision] = "fp32"
    file: ClassVar[str] = "model.onnx"
    accuracy: ClassVar[str] = "fp32"

    def write(self, source: Source) -> Net:
        """Write the graph without functions."""
        return Net(self, write_floats(source), record={"cpu_math": self.math})

    def measured(self, net: Net) -> dict[str, Any]:
        """Return the operators that ONNX Runtime fuses when it opens the file."""
        return {"fused_operators": online_fusions(net.path)}
