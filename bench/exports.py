"""Checkpoints exported by hfx, once for each state of its sources, and kept in the cache: in fp16 for GPUs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench.packages import converted

NAME = "model"
BOTH = "int8 and fp16"  # a precision: `hfx export --quantize`, for CPUs and for GPUs


def exported(checkpoint: Path, precision: str, slots: int | None = None) -> Path:
    """A repository with `checkpoint` as the model NAME. Raises PeerFailed where it can't be exported."""
    stem = f"published-{precision}-{slots or 'usual'}-{checkpoint.name}"
    files = [checkpoint / "config.json", *sources()]
    return converted(stem, files, export, checkpoint=str(checkpoint), precision=precision, slots=slots)


def sources() -> list[Path]:
    """The files of hfx that decide what is published."""
    import hfx

    root = Path(hfx.__file__).parent
    folders = (root / name for name in ("exporter", "python_backends", "repository"))
    native = (path for path in sorted((root / "native").rglob("*")) if path.suffix in (".cpp", ".h", ".py"))
    return [*(path for folder in folders for path in sorted(folder.rglob("*.py"))), *native]


def export(
    folder: str, checkpoint: str, precision: str, slots: int | None = None, runtime: Any = "auto", gate: bool = False
) -> None:
    """`hfx export` for one device or BOTH, by default without the gate: random weights answer with near ties.

    The precision fp16 is for GPUs; bf16 is an encoder's fp32 file that is computed in bfloat16.
    """
    from hfx.exporter import pipeline
    from hfx.exporter.options import ExportOptions
    from hfx.exporter.pipeline import make_plan
    from hfx.exporter.source import open_checkpoint

    options = ExportOptions(
        name=NAME,
        precision=None if precision == BOTH else "fp32" if precision == "bf16" else precision,
        quantize=precision == BOTH,
        cpu_math="bf16" if precision == "bf16" else "fp32",
        device="both" if precision == BOTH else "gpu" if precision == "fp16" else "cpu",
        cpu_runtime="native" if precision == BOTH else runtime,
        slots=slots,
        repository=Path(folder),
        max_drop=1.0,
        command="python -m bench",
    )
    plan = make_plan(open_checkpoint(checkpoint), options)
    pipeline.export(plan, nullcontext, None if gate else pipeline.without_gate(plan))
