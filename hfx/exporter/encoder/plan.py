"""The plan of an encoder's export. torch is not imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hfx.errors import UsageError
from hfx.exporter.encoder.architectures import check_encoder
from hfx.exporter.encoder.kinds import EncoderKind, find_kind
from hfx.exporter.encoder.module_list import STATIC
from hfx.exporter.mixed_precision import Search
from hfx.exporter.options import CpuMath, Exporter, ExportOptions, Precision
from hfx.exporter.plan import Plan, common_fields, refuse_options
from hfx.exporter.runtime import why_no_openvino
from hfx.exporter.source import Checkpoint
from hfx.python_backends.onnxruntime.sessions import multiplies_bfloat16
from hfx.repository.config_pbtxt import TensorSpec

if TYPE_CHECKING:
    from hfx.exporter.adapters.part import AdapterPart

GENERATOR_OPTIONS = {"slots": "--slots"}
# From opset 17 on, LayerNormalization is one operator. 18 is below the maximum of every release in releases.py.
OPSET = 18
DEFAULT_MAX_BATCH_SIZE = 64
LARGEST_MAX_BATCH_SIZE = 1024
# Sequences are padded to the next of these widths. Padding costs compute: on a mix of sentences and paragraphs these
# widths waste 9 %, doubling widths 39 %. 16 is the least: below it, OpenVINO's vector kernels take another path, and
# the last bit of an answer would depend on the lengths of the other rows.
WIDTHS = (
    *range(16, 65, 8),
    *range(80, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1152, 2049, 128),
    *range(2304, 4097, 256),
    *range(4608, 8193, 512),
)


@dataclass(frozen=True, kw_only=True)
class EncoderPlan(Plan):
    """The plan of an encoder's export.

    On the CPU, its fp32 file is computed in `cpu_math`. A `strict` export publishes int8, or nothing. `searched` is
    what an earlier export found out about int8, and is repeated. An `adapter` shares its net with others.
    """

    kind: EncoderKind
    exporter: Exporter
    cpu_math: CpuMath
    max_batch_size: int
    widths: tuple[int, ...]
    strict: bool = False
    searched: Search | None = None
    adapter: AdapterPart | None = None

    @property
    def net_outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the net; an adapter's may have room for more labels than it has."""
        outputs = self.kind.net_outputs(self.checkpoint.config)
        if self.adapter is None or not self.adapter.labels_room:
            return outputs
        return tuple(replace(each, dims=(*each.dims[:-1], self.adapter.labels_room)) for each in outputs)

    @property
    def searches(self) -> bool:
        """Whether the export searches for another file for CPUs if the gate refuses the one in int8."""
        return self.cpu_precision == "int8" and not self.strict and self.searched is None and self.adapter is None

    def options_of(self, sample: int) -> dict[str, Any]:
        """Return the options of the gate's request number `sample`."""
        return self.kind.request_options(sample, self.checkpoint.config)

    def details(self) -> dict[str, object]:
        """Return what `describe` says about an encoder."""
        return {
            "kind": str(self.kind.name),
            "cpu_math": self.cpu_math if self.cpu_precision == "fp32" else None,
            "onnxruntime": self.release.ort,
            "opset": OPSET,
            "max_batch_size": self.max_batch_size,
            "widths": list(self.widths),
            "strict": self.strict if self.cpu_precision == "int8" else None,
            **self.kind.details(),
        }


def make_encoder_plan(checkpoint: Checkpoint, options: ExportOptions) -> EncoderPlan:
    """Decide everything about the export of an encoder.

    Raises UsageError or CheckpointUnsupported if the export is impossible.
    """
    found = find_kind(checkpoint, options)
    refuse_options(options, GENERATOR_OPTIONS, found.task)
    check_encoder(checkpoint, found.task)
    _check_exporter(options.exporter)
    kind = found.read(checkpoint, options)
    if options.searched is not None and options.searched.precision == "fp32":
        options = replace(options, quantize=False, precision=None)
    common = common_fields(checkpoint, options, int4=False)
    if options.strict and common["cpu_precision"] != "int8":
        raise UsageError("--strict is for files in int8.", "Leave it out, or add --quantize.")
    if checkpoint.model_type == STATIC and common["cpu_precision"] == "int8":
        raise UsageError(
            f"{checkpoint.id} looks vectors up in a table: int8 would make nothing faster.",
            "Leave --quantize and --precision out.",
        )
    _check_cpu_math(options, common["cpu_precision"])
    max_length = kind.max_length(checkpoint, options.max_length)
    return EncoderPlan(
        **common,
        kind=kind,
        exporter=options.exporter,
        cpu_math=options.cpu_math,
        graph="optimum" if options.exporter == "optimum" else "traced",
        max_batch_size=_max_batch_size(options.max_batch_size, kind.most_rows(checkpoint.config, max_length)),
        max_length=max_length,
        widths=widths_up_to(max_length, kind.own_widths),
        notes=kind.notes(checkpoint, options),
        strict=options.strict,
        searched=options.searched,
    )


def _check_exporter(exporter: Exporter) -> None:
    if exporter == "optimum" and importlib.util.find_spec("optimum") is None:
        raise UsageError(
            "--exporter optimum needs optimum, which is not installed.",
            "Leave it out, or install hfx[optimum] in a separate environment: optimum needs transformers 4.57.",
        )


def _check_cpu_math(options: ExportOptions, precision: Precision | None) -> None:
    """Raise UsageError for bfloat16 if no file is built that can use it, or if the gate can't compute in it."""
    if options.cpu_math == "fp32":
        return
    option = f"--cpu-math {options.cpu_math}"
    if precision is None:
        raise UsageError(f"{option} is for CPUs, and nothing is built for one.", "Leave it out, or use --device both.")
    if precision != "fp32":
        raise UsageError(f"{option} is for fp32, not {precision}.", "Leave one of them out.")
    if options.cpu_runtime not in ("auto", "openvino"):
        raise UsageError(
            f"{option} is OpenVINO's: --cpu-runtime {options.cpu_runtime} computes in float32.",
            "Leave one of them out.",
        )
    if missing := why_no_openvino():
        raise UsageError(f"{option} needs OpenVINO, and {missing}.", "pip install openvino")
    if not multiplies_bfloat16():
        raise UsageError(
            f"{option}: this processor has no bfloat16 instructions (avx512_bf16), so answers in it can't be compared "
            "with the checkpoint's.",
            "Export on a processor that has them, or leave it out.",
        )


def widths_up_to(max_length: int, own: Collection[int] = ()) -> tuple[int, ...]:
    """Return the usual widths below `max_length`, the model's `own` widths, and `max_length` as the last one."""
    return (*sorted({*own, *(width for width in WIDTHS if width < max_length)} - {max_length}), max_length)


def _max_batch_size(requested: int | None, bound: int | None) -> int:
    most = LARGEST_MAX_BATCH_SIZE if bound is None else bound
    size = min(DEFAULT_MAX_BATCH_SIZE, most) if requested is None else requested
    if not 1 <= size <= most:
        raise UsageError(f"--max-batch-size {size} is out of range.", f"Choose 1 to {most}.")
    return size
