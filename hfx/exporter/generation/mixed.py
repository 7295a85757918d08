"""Find the fastest engine of a generator that passes the gate, after the gate has refused all formats of a precision.

The linears are ranked by the error that each one alone adds (quantize/linears.py). Engines in which the worst linears
have a finer format then go through the gate, until the least number of them is found. If no such engine passes, or if
it is hardly faster than the fp32 engine, the fp32 engine is published.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from hfx.errors import VerificationFailed
from hfx.exporter.generation.engine_folder import read_net, release_memory, write, write_engine_folder
from hfx.exporter.generation.gate import Comparison, Gate
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.runtimes import seconds_of
from hfx.exporter.mixed_precision import Search, fewest_kept
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.quantize.linears import rank_linears
from hfx.exporter.runtime import CpuChoice, Runtime, weight_levels

EXACT = "exact"  # the folder of the fp32 engine, beside the CPU's, while both are measured


def compare_cpu(gate: Gate, choice: CpuChoice) -> tuple[Comparison, CpuChoice, Search | None]:
    """Compare the CPU's engine folder, or find another one; return the runtime to publish and the search's record.

    Raises VerificationFailed with --strict, in other precisions, and if an earlier export has found the linears.
    """
    try:
        return (*gate.compare_cpu(choice), gate.plan.searched)
    except VerificationFailed as refusal:
        if not gate.plan.searches:
            raise
        return _search(gate, choice, refusal)


def final(plan: GeneratorPlan, search: Search | None) -> GeneratorPlan:
    """Return the plan with the precision of the engine for CPUs that is published."""
    return plan if search is None else replace(plan, cpu_precision=search.precision)


def _search(gate: Gate, choice: CpuChoice, refusal: VerificationFailed) -> tuple[Comparison, CpuChoice, Search]:
    began, plan = time.monotonic(), gate.plan
    runtimes: tuple[Runtime, ...] = tuple(dict.fromkeys((choice.runtime, "onnxruntime")))
    formats, precision, levels = plan.formats("cpu")[-1], plan.cpu_precision, weight_levels()
    assert precision == "int8" or precision == "int4"
    ranking = rank_linears(read_net(plan.checkpoint, formats, levels, plan.max_length), formats, levels)
    release_memory()
    order = tuple(ranking)
    found, runs = fewest_kept(
        len(order), lambda count: gate.attempt("cpu", runtimes, replace(formats, kept=order[:count]))
    )
    record = Search(
        precision,
        kept=found.formats.kept if found else (),
        products=len(order),
        reason=refusal.message,
        gate_runs=runs,
        ranking=ranking,
    )
    if found is not None:
        write(plan, gate.version, "cpu", runtimes, found.formats)  # another one may have been tried since
        record = replace(record, speedup=_speedup(plan, gate.version, choice.runtime))
    if found is None or not record.pays:
        record = record.exact(plan.cpu_runtime)
        found, choice = _exact(gate, choice, record)
    return found, choice, replace(record, seconds=round(time.monotonic() - began, 1))


def _speedup(plan: GeneratorPlan, version: Path, runtime: Runtime) -> float:
    """Return how many times as fast as in fp32 the engine folder answers, measured in turn."""
    exact = version / EXACT
    try:
        write_engine_folder(plan.checkpoint, exact, FORMATS["fp32"], weight_levels(), plan.max_length)
        times = seconds_of(plan, {"mixed": (version / "cpu", runtime), EXACT: (exact, "onnxruntime")})
    finally:
        shutil.rmtree(exact, ignore_errors=True)
        release_memory()
    return float(f"{times[EXACT] / times['mixed']:.3g}")


def _exact(gate: Gate, choice: CpuChoice, record: Search) -> tuple[Comparison, CpuChoice]:
    """Write and compare the fp32 engine. Raises VerificationFailed if the gate refuses it."""
    exact = replace(gate, plan=final(gate.plan, record))
    write(exact.plan, gate.version, "cpu", ("onnxruntime",))
    return exact.compare_cpu(replace(choice, runtime="onnxruntime"))
