"""Files on CPUs that OpenVINO runs: in float32, in bfloat16, and in int8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hfx.errors import UsageError
from hfx.exporter.mixed_precision import Precision
from hfx.exporter.options import CpuMath, ExportOptions
from hfx.exporter.runtime import Runtime, Timer, why_no_openvino
from hfx.exporter.variants.floats import thread_counts, write_floats
from hfx.exporter.variants.variant import Accelerators, Net, Source, Variant
from hfx.python_backends.onnxruntime.sessions import PRECISION, multiplies_bfloat16

STEPS_MILLISECONDS = 1.4  # what Python steps add to a request, the least measured (docs/benchmarks-encoder.md)


@dataclass(frozen=True)
class OpenvinoFloats(Variant):
    """The float32 file, run by OpenVINO."""

    name: ClassVar[str] = "openvino-fp32"
    precision: ClassVar[Precision] = "fp32"
    runtime: ClassVar[Runtime] = "openvino"
    file: ClassVar[str] = "model.onnx"
    accuracy: ClassVar[str] = "fp32"
    # The standard entry that makes an onnxruntime backend use OpenVINO.
    accelerators: ClassVar[Accelerators] = (("openvino", {}),)
    steps_milliseconds: ClassVar[float] = STEPS_MILLISECONDS
    fix: ClassVar[str] = "pip install openvino"

    def missing(self) -> str:
        """Return why OpenVINO is not available; empty if it is."""
        return why_no_openvino()

    def settings(self, threads: int) -> dict[str, str]:
        """Return the numbers of threads."""
        return thread_counts(threads)

    def write(self, source: Source) -> Net:
        """Write the graph without functions."""
        return Net(self, write_floats(source), record={"cpu_math": self.math})


@dataclass(frozen=True)
class Bfloat16(OpenvinoFloats):
    """The float32 file, computed in bfloat16."""

    name: ClassVar[str] = "openvino-bf16"
    math: ClassVar[CpuMath] = "bf16"
    accuracy: ClassVar[str] = "bf16"

    def settings(self, threads: int) -> dict[str, str]:
        """Return the numbers of threads, and the type of the products."""
        return {**super().settings(threads), f"openvino.{PRECISION}": self.math}

    def measured(self, net: Net, timer: Timer) -> dict[str, Any]:
        """Return the times in both types: some processors that have bfloat16 are slower in it."""
        both = {variant.math: Net(variant, net.path) for variant in (OpenvinoFloats(), self)}
        return {"cpu_math_milliseconds": timer.in_turn(both)}


@dataclass(frozen=True)
class OpenvinoInt8(OpenvinoFloats):
    """The file with int8 weights; OpenVINO quantizes what they multiply when it runs."""

    name: ClassVar[str] = "openvino-int8"
    precision: ClassVar[Precision] = "int8"
    file: ClassVar[str] = "model.int8.onnx"
    accuracy: ClassVar[str] = "int8"

    def write(self, source: Source) -> Net:
        """Write the graph with the weights in int8.

        Each group of a row has one activation scale; with the default of 32, OpenVINO is no faster than ONNX Runtime.
        """
        from hfx.exporter.encoder.graph.build import inlined, save
        from hfx.exporter.quantize.encoder import weight_only

        path, quantized = source.folder / "openvino.onnx", weight_only(inlined(source.graph), source.floats)
        save(quantized.model, path)
        group = {"openvino.DYNAMIC_QUANTIZATION_GROUP_SIZE": str(int(source.model.config.hidden_size))}
        return Net(self, path, group, {"int8_weights": quantized.weights})


def check_bfloat16(options: ExportOptions, precision: Precision | None) -> None:
    """Raise UsageError for --cpu-math bf16 if no file is built that can use it, or if the gate can't compute in it."""
    way = Bfloat16()
    if options.cpu_math != way.math:
        return
    option = f"--cpu-math {way.math}"
    if precision is None:
        raise UsageError(f"{option} is for CPUs, and nothing is built for one.", "Leave it out, or use --device both.")
    if precision != way.precision:
        raise UsageError(f"{option} is for {way.precision}, not {precision}.", "Leave one of them out.")
    if options.cpu_runtime not in ("auto", way.runtime):
        raise UsageError(
            f"{option} is OpenVINO's: --cpu-runtime {options.cpu_runtime} computes in float32.",
            "Leave one of them out.",
        )
    if missing := way.missing():
        raise UsageError(f"{option} needs OpenVINO, and {missing}.", way.fix)
    if not multiplies_bfloat16():
        raise UsageError(
            f"{option}: this processor has no bfloat16 instructions (avx512_bf16), so answers in it can't be compared "
            "with the checkpoint's.",
            "Export on a processor that has them, or leave it out.",
        )
