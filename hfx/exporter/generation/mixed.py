"""Find the fastest engine of a generator that passes the gate, after the gate has refused all formats of a precision.

The linears are ranked by the error that each one alone adds (quantize/linears.py). Engines in which the worst linears
have a finer format then go through the gate, until the least number of them is found. If no such engine passes, or if
it is hardly faster than the fp32 engine, the fp32 engine is published.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from hfx.errors import VerificationFailed
from hfx.exporter.generation.engine_folder import read_net, release_memory, write_engine_folder
from hfx.exporter.generation.gate import RESERVE, Comparison, Gate
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.runtimes import seconds_of
from hfx.exporter.mixed_precision import EXACT, Search, fewest_kept
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.quantize.linears import rank_linears
from hfx.exporter.runtime import CpuChoice, Runtime, weight_levels
from hfx.local import Device

EXACT_FOLDER = "exact"  # the folder of the fp32 engine, beside the CPU's, while both are measured


def compare(gate: Gate, device: Device, choice: CpuChoice) -> tuple[Comparison, CpuChoice, Search | None]:
    """Compare the engine folder of `device`, or find another one; return the runtime to publish and a search's record.

    Raises VerificationFailed with --strict, in other precisions, and if an earlier export has found the linears.
    """
    try:
        return (*gate.compare_all(device, choice), None)
    except VerificationFailed as refusal:
        if not gate.plan.searches(device):
            raise
        return _search(gate, device, choice, refusal)


def _search(
    gate: Gate, device: Device, choice: CpuChoice, refusal: VerificationFailed
) -> tuple[Comparison, CpuChoice, Search]:
    """Return the engine to publish. Raises VerificationFailed if the gate refuses the fp32 engine, too."""
    began, plan = time.monotonic(), gate.plan
    runtimes: tuple[Runtime, ...] = tuple(dict.fromkeys((choice.runtime, RESERVE)))
    formats, levels = plan.formats(device)[-1], weight_levels()
    order = tuple(ranking := rank_linears(read_net(plan.checkpoint, formats, levels, plan.max_length), formats, levels))
    release_memory()

    def attempt(count: int, whole: bool = False) -> Comparison | None:
        return gate.attempt(device, runtimes if whole else runtimes[:1], replace(formats, kept=order[:count]), whole)

    # The next tokens on one runtime take little of the time of all figures, and nearly always decide.
    found, runs = fewest_kept(len(order), attempt)
    if found is not None and (found := attempt(len(found.formats.kept), whole=True)) is None:
        found, more = fewest_kept(len(order), partial(attempt, whole=True))
        runs += more
    record = Search(
        formats.precision,
        kept=found.formats.kept if found else (),
        products=len(order),
        reason=refusal.message,
        gate_runs=runs,
        ranking=ranking,
    )
    if found is not None:
        gate.write(device, runtimes, found.formats)  # another one may have been tried since
        record = replace(record, speedup=_speedup(plan, gate.version / device, choice.runtime))
    if found is None or not record.pays:
        record = record.exact(plan.cpu_runtime)
        exact = replace(gate, plan=replace(plan, built=plan.built | {device: record.precision}))
        found, choice = exact.compare_all(device, replace(choice, runtime=RESERVE))
    return found, choice, replace(record, seconds=round(time.monotonic() - began, 1))


def _speedup(plan: GeneratorPlan, folder: Path, runtime: Runtime) -> float:
    """Return how many times as fast as in fp32 the engine in `folder` answers, measured in turn."""
    exact = folder.with_name(EXACT_FOLDER)
    try:
        write_engine_folder(plan.checkpoint, exact, FORMATS[EXACT], weight_levels(), plan.max_length)
        times = seconds_of(plan, {"mixed": (folder, runtime), EXACT: (exact, RESERVE)})
    finally:
        shutil.rmtree(exact, ignore_errors=True)
        release_memory()
    return float(f"{times[EXACT] / times['mixed']:.3g}")
