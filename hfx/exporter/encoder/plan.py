"""The plan of an encoder's export. torch is not imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.errors import UsageError
from hfx.exporter.encoder.checkpoint.architectures import check_encoder
from hfx.exporter.encoder.checkpoint.module_list import STATIC
from hfx.exporter.encoder.kinds import EncoderKind, find_kind
from hfx.exporter.mixed_precision import FINER, Precision
from hfx.exporter.options import Exporter, ExportOptions
from hfx.exporter.plan import ENCODERS, OPSET, Plan, common_fields, refuse_options
from hfx.exporter.source import Checkpoint
from hfx.exporter.variants import offered
from hfx.exporter.variants.bfloat16 import check_bfloat16
from hfx.exporter.variants.variant import Variant
from hfx.local import Device
from hfx.repository.config_pbtxt import TensorSpec

GENERATOR_OPTIONS = {"slots": "--slots"}
DEFAULT_MAX_BATCH_SIZE = 64
LARGEST_MAX_BATCH_SIZE = 1024
# Sequences are padded to the next of these widths. Padding costs compute: on a mix of sentences and paragraphs these
# widths waste 9 %, doubling widths 39 %.
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

    `variants` are the ways to write and run the net that are tried on each device. `calibrate` is the file of labelled
    rows, one of `verify_data`, that sets the temperature.
    """

    kind: EncoderKind
    exporter: Exporter
    variants: dict[Device, tuple[Variant, ...]]
    max_batch_size: int
    widths: tuple[int, ...]
    calibrate: Path | None = None

    @property
    def net_outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the net."""
        outputs = self.kind.net_outputs(self.checkpoint.config)
        return next(iter(self.variants.values()))[0].outputs(outputs)

    def options_of(self, sample: int) -> dict[str, Any]:
        """Return the options of the gate's request number `sample`."""
        return self.kind.request_options(sample, self.checkpoint.config)

    def details(self) -> dict[str, object]:
        """Return what `describe` says about an encoder."""
        return {
            "kind": str(self.kind.name),
            "cpu_math": next((each.math for each in self.variants.get("cpu", ()) if each.precision not in FINER), None),
            "onnxruntime": self.release.ort,
            "opset": OPSET,
            "max_batch_size": self.max_batch_size,
            "widths": list(self.widths),
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
    common = common_fields(checkpoint, options, ENCODERS)
    built: Mapping[Device, Precision] = common["built"]
    chosen: dict[Device, tuple[Any, ...]] = {"cpu": (options.cpu_runtime, options.cpu_math), "gpu": ()}
    if checkpoint.model_type == STATIC and built.get("cpu") in FINER:
        raise UsageError(
            f"{checkpoint.id} looks vectors up in a table: int8 would make nothing faster.",
            "Leave --quantize and --precision out.",
        )
    check_bfloat16(options, built.get("cpu"))
    max_length = kind.max_length(checkpoint, options.max_length)
    return EncoderPlan(
        **common,
        kind=kind,
        exporter=options.exporter,
        variants={device: offered(device, precision, *chosen[device]) for device, precision in built.items()},
        graph="optimum" if options.exporter == "optimum" else "traced",
        max_batch_size=_max_batch_size(options.max_batch_size, kind.most_rows(checkpoint.config, max_length)),
        max_length=max_length,
        widths=widths_up_to(max_length, kind.own_widths),
        notes=kind.notes(checkpoint, options),
        calibrate=options.calibrate,
    )


def _check_exporter(exporter: Exporter) -> None:
    if exporter == "optimum" and importlib.util.find_spec("optimum") is None:
        raise UsageError(
            "--exporter optimum needs optimum, which is not installed.",
            "Leave it out, or install hfx[optimum] in a separate environment: optimum needs transformers 4.57.",
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
