"""`hfx perf machine`: this machine, and what it can do at most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from hfx.cli.output import reporter

if TYPE_CHECKING:
    from hfx.perf.machine import Measured
    from hfx.perf.results import Machine

MEANINGS = {
    "read_bytes": ("reads", "GB/s", "a model that decodes for few callers reads all of its weights for every token"),
    "fp32_operations": ("fp32", "Gop/s", "what long texts and large batches need in fp32: two for each parameter"),
    "int8_operations": ("int8", "Gop/s", "the same for quantized models"),
}
GIGA = 1e9
GIB = 1 << 30


def command(
    context: typer.Context,
    again: Annotated[bool, typer.Option("--again", help="Measure the rates anew.")] = False,
) -> None:
    """Measure what this machine can do at most (some seconds on all cores), and say what it is."""
    from dataclasses import asdict

    from hfx.perf.machine import machine, measurements

    report = reporter(context)
    with report.progress("Measuring"):
        measured = measurements(again)
    found = machine()
    value = asdict(found) | {"rates": asdict(measured.rates), "ways": dict(measured.ways)}
    report.result(value, _lines(found, measured))


def _lines(found: Machine, measured: Measured) -> Iterator[str]:
    cores = f"{found.cores} core{'' if found.cores == 1 else 's'}"
    yield f"{found.processor}, {cores}, {found.memory / GIB:.0f} GiB, {found.system}"
    yield from found.gpus or ("no GPU",)
    if found.load > found.cores / 2:
        yield f"Other work is going on (load average {found.load:.1f}): rates may be too low, --again measures anew."
    for name, (title, unit, meaning) in MEANINGS.items():
        rate = getattr(measured.rates, name) / GIGA
        yield f"{title:6}{rate:8.1f} {unit:6} {meaning}"
        yield f"{'':22} by {measured.ways[name]}"
