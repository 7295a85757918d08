"""Find the fastest file of an encoder that passes the gate, after the gate has refused int8.

The products are ranked by the error that each one alone adds (quantize/sensitivity.py). Files in which the worst
products stay in float32 then go through the gate, until the least number of them is found. If no such file passes, or
if it is hardly faster than the fp32 file, the fp32 file is published.
"""

from __future__ import annotations

import gc
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx import names
from hfx.errors import VerificationFailed
from hfx.exporter import runtime
from hfx.exporter.encoder import folders
from hfx.exporter.encoder.build import remove, rename
from hfx.exporter.encoder.comparisons import answer_data_in_torch, compare, measure, opened
from hfx.exporter.encoder.linears import GraphView
from hfx.exporter.encoder.nets import FILE_NAMES, EncoderArtefacts, choose_runtime, write_cpu_nets
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.mixed_precision import SEARCH, Search, fewest_kept
from hfx.exporter.options import CpuRuntime
from hfx.exporter.quantize.encoder import LEVELS, row_source
from hfx.exporter.quantize.products import find_products
from hfx.exporter.quantize.sensitivity import rank
from hfx.local import Device, Tensors
from hfx.python_backends.onnxruntime.config import OPERATORS

# Products are ranked by some of the gate's texts: of at most so many tokens, in so many batches of so many texts.
LONGEST_TEXT, BATCHES, BATCH = 64, 3, 4
Check = Callable[[EncoderPlan, EncoderArtefacts, Device], EncoderArtefacts]


def checked(plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device, check: Check) -> EncoderArtefacts:
    """Return the artefacts with the figures of `check`, or those of another file for CPUs if it refuses int8.

    Raises VerificationFailed with --strict, in other precisions, and if an earlier export has found the products.
    """
    try:
        return check(plan, artefacts, device)
    except VerificationFailed as refusal:
        if device != "cpu" or not plan.searches or artefacts.search is not None:
            raise
        return _search(plan, artefacts, refusal)


def final(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderPlan:
    """Return the plan with the precision of the file for CPUs that is published."""
    return plan if artefacts.search is None else replace(plan, cpu_precision=artefacts.search.precision)


def _search(plan: EncoderPlan, refused: EncoderArtefacts, refusal: VerificationFailed) -> EncoderArtefacts:
    """Return the artefacts of the fastest file that passes the gate. Raises VerificationFailed if fp32 does not."""
    began = time.monotonic()
    artefacts = answer_data_in_torch(plan, replace(refused, tokenizing=None))
    ranking = _ranking(plan, artefacts)
    mixed, runs = fewest_kept(len(ranking), lambda count: _attempt(plan, artefacts, [*ranking][:count]))
    if mixed is not None:
        _restore(plan, mixed)
    exact = _written(replace(plan, cpu_precision="fp32", cpu_runtime=_exact_runtime(plan)), artefacts)
    record = Search(
        precision="int8",
        kept=mixed.search.kept if mixed and mixed.search else (),
        products=len(ranking),
        reason=refusal.message,
        gate_runs=runs,
        speedup=_speedup(plan, mixed, exact) if mixed else None,
        ranking=ranking,
    )
    if mixed is None or not record.pays:
        record = record.exact(plan.cpu_runtime)
        result = _only_exact(plan, artefacts, exact)
    else:
        result = _only_mixed(plan, mixed)
    record = replace(record, seconds=round(time.monotonic() - began, 1))
    return replace(result, search=record, graph=None, choices={**result.choices, SEARCH: record.as_json()})


def _ranking(plan: EncoderPlan, artefacts: EncoderArtefacts) -> dict[str, float]:
    """Return the products and the error that each one alone adds in int8, the largest first."""
    assert artefacts.graph is not None and artefacts.choice is not None
    source = row_source(artefacts.graph)
    view = GraphView(source)
    levels = LEVELS if artefacts.choice.runtime == "openvino" else runtime.weight_levels()
    return rank(source, view, find_products(view), _feeds(plan, artefacts), levels, plan.threads)


def _feeds(plan: EncoderPlan, artefacts: EncoderArtefacts) -> list[Mapping[str, NDArray[Any]]]:
    """Return the inputs of the graph for some of the gate's texts, in batches of equal lengths, without padding."""
    assert artefacts.reference is not None
    by_shape: dict[tuple[int, ...], list[Tensors]] = defaultdict(list)
    for each in artefacts.reference.encoded:
        by_shape[each[names.INPUT_IDS].shape[-plan.kind.item_rank :]].append(each)
    short = [shape for shape in by_shape if np.prod(shape) <= LONGEST_TEXT] or [min(by_shape, key=math.prod)]
    chosen = sorted(short, key=lambda shape: -len(by_shape[shape]))[:BATCHES]
    return [
        {name: np.concatenate([each[name].reshape(-1) for each in batch]).astype(np.int32) for name in artefacts.inputs}
        | {names.ITEM_SHAPE: np.array([shape] * len(batch), np.int32)}
        for shape in chosen
        for batch in [by_shape[shape][:: -(-len(by_shape[shape]) // BATCH)]]
    ]


def _attempt(plan: EncoderPlan, artefacts: EncoderArtefacts, kept: list[str]) -> EncoderArtefacts | None:
    """Return the artefacts of the file with the products `kept` in float32; None if the gate refuses it.

    A file that passes is moved aside, so that the next one does not replace it.
    """
    assert artefacts.choice is not None
    search = Search("int8", tuple(kept))
    tried = replace(plan, searched=search, cpu_runtime=artefacts.choice.runtime)
    made = replace(_written(tried, artefacts), search=search)
    try:
        passed = _gated(plan, made)
    except VerificationFailed:
        return None
    rename(_file(plan, passed), _aside(plan, passed))
    return passed


def _written(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write the file of `plan` for CPUs with its configuration."""
    assert plan.cpu_precision is not None
    gc.collect()  # graphs and sessions of earlier files, in reference cycles: 2.5 GB after four files of a BERT-base
    # Runtimes have mapped the earlier file into memory: its bytes must not change.
    remove(artefacts.net_folder(plan) / FILE_NAMES[plan.cpu_precision])
    made = choose_runtime(plan, write_cpu_nets(plan, artefacts))
    folders.write_net(plan, made.net_folder(plan).parent, made.inputs, made.files, made.choice)
    return made


def _gated(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Return the artefacts with the figures of the gate and of the user's data. Raises VerificationFailed."""
    compared = compare(plan, replace(artefacts, tokenizing=opened(plan, artefacts, "cpu")), "cpu")
    measured = measure(plan, compared, "cpu") if plan.verify_data else compared
    return replace(measured, tokenizing=None)


def _file(plan: EncoderPlan, artefacts: EncoderArtefacts) -> Path:
    return artefacts.net_folder(plan) / artefacts.files["cpu"]


def _aside(plan: EncoderPlan, artefacts: EncoderArtefacts) -> Path:
    return artefacts.net_folder(plan) / "passed.onnx"


def _restore(plan: EncoderPlan, mixed: EncoderArtefacts) -> None:
    """Move the file that passed last to its place; another one may have been tried since."""
    remove(_file(plan, mixed))
    rename(_aside(plan, mixed), _file(plan, mixed))


def _exact_runtime(plan: EncoderPlan) -> CpuRuntime:
    """Return --cpu-runtime for fp32; the native operators are for int8."""
    return "auto" if plan.cpu_runtime == "native" else plan.cpu_runtime


def _speedup(plan: EncoderPlan, mixed: EncoderArtefacts, exact: EncoderArtefacts) -> float:
    """Return how many times as fast as in fp32 the mixed file computes, measured in turn."""
    assert mixed.choice is not None and exact.choice is not None
    files = {"mixed": (mixed.choice, _file(plan, mixed)), "exact": (exact.choice, _file(plan, exact))}
    times = runtime.times_in_turn(files, mixed.inputs, plan.kind.item_rank, plan.threads, plan.max_length)
    means = {name: geometric_mean(each.values()) for name, each in times.items()}
    return float(f"{means['exact'] / means['mixed']:.3g}")


def _only_mixed(plan: EncoderPlan, mixed: EncoderArtefacts) -> EncoderArtefacts:
    """Return the artefacts of the mixed file, without the fp32 file."""
    remove(mixed.net_folder(plan) / FILE_NAMES["fp32"])
    folders.write_net(plan, mixed.net_folder(plan).parent, mixed.inputs, mixed.files, mixed.choice)
    choice: dict[str, Any] = {**mixed.choices["cpu_runtime"], "requested": plan.cpu_runtime}
    return replace(mixed, choices={**mixed.choices, "cpu_runtime": choice})


def _only_exact(plan: EncoderPlan, artefacts: EncoderArtefacts, exact: EncoderArtefacts) -> EncoderArtefacts:
    """Return the artefacts of the fp32 file, without the other files.

    Raises VerificationFailed if the gate refuses it.
    """
    remove(artefacts.net_folder(plan) / FILE_NAMES["int8"])
    assert artefacts.choice is not None
    if artefacts.choice.operators:
        (artefacts.net_folder(plan) / artefacts.choice.operators[OPERATORS]).unlink()
    choices = {name: value for name, value in exact.choices.items() if name != "int8_weights"}
    return _gated(replace(plan, cpu_precision="fp32"), replace(exact, choices=choices))
