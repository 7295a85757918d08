"""Find the fastest file of an encoder that passes the gate, after the gate has refused int8.

The products are ranked by the error that each one alone adds (quantize/sensitivity.py). Files in which the worst
products stay in float32 then go through the gate, until the least number of them is found. If no such file passes, or
if it is hardly faster than the fp32 file, the fp32 file is published.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx import names
from hfx.errors import VerificationFailed
from hfx.exporter.encoder import folders
from hfx.exporter.encoder.comparisons import answer_data_in_torch, compare, measure
from hfx.exporter.encoder.graph.build import remove, rename
from hfx.exporter.encoder.graph.linears import GraphView
from hfx.exporter.encoder.nets import EncoderArtefacts, choose, write
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.mixed_precision import EXACT, SEARCH, Search, fewest_kept
from hfx.exporter.quantize.encoder import row_source
from hfx.exporter.quantize.products import find_products
from hfx.exporter.quantize.sensitivity import rank
from hfx.exporter.variants import offered
from hfx.exporter.variants.variant import Variant
from hfx.local import Device, Tensors

# Products are ranked by some of the gate's texts: of at most so many tokens, in so many batches of so many texts.
LONGEST_TEXT, BATCHES, BATCH = 64, 3, 4
TRIED = "tried"  # the beginning of the names of files that are tried
Check = Callable[[EncoderPlan, EncoderArtefacts, Device], EncoderArtefacts]


def checked(plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device, check: Check) -> EncoderArtefacts:
    """Return the artefacts with the figures of `check`, or those of another net if it refuses one in int8.

    Raises VerificationFailed with --strict, in other precisions, and if an earlier export has found the products.
    """
    try:
        return check(plan, artefacts, device)
    except VerificationFailed as refusal:
        if not plan.searches(device) or artefacts.search:
            raise
        return _search(plan, artefacts, device, refusal)


def _search(
    plan: EncoderPlan, refused: EncoderArtefacts, device: Device, refusal: VerificationFailed
) -> EncoderArtefacts:
    """Return the artefacts of the fastest net that passes the gate. Raises VerificationFailed if fp32 does not."""
    began = time.monotonic()
    artefacts = answer_data_in_torch(plan, refused)
    search = _Attempts(plan, artefacts, device)
    ranking = _ranking(plan, artefacts, artefacts.nets[device].variant.levels)
    mixed, runs = fewest_kept(len(ranking), lambda count: search.mixed([*ranking][:count]))
    exact = search.exact()
    record = Search(
        precision="int8",
        kept=mixed.search.kept if mixed and mixed.search else (),
        products=len(ranking),
        reason=refusal.message,
        gate_runs=runs,
        speedup=search.speedup(mixed, exact) if mixed else None,
        ranking=ranking,
    )
    if mixed is None or not record.pays:
        record, mixed = record.exact(), None
    result = search.published(mixed or exact)
    if mixed is None:
        result = _gated(plan, result, device)
    record = replace(record, seconds=round(time.monotonic() - began, 1))
    return replace(result, search=record, graph=None, choices={**result.choices, SEARCH: record.as_json()})


def _ranking(plan: EncoderPlan, artefacts: EncoderArtefacts, levels: int) -> dict[str, float]:
    """Return the products and the error that each one alone adds in int8, the largest first."""
    assert artefacts.graph is not None
    source = row_source(artefacts.graph)
    view = GraphView(source)
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


class _Attempts:
    """Writes nets for `device` in place of the one that `refused` has, each to a file of its own.

    Runtimes have mapped the earlier files into memory, so that their bytes must not change.
    """

    def __init__(self, plan: EncoderPlan, refused: EncoderArtefacts, device: Device) -> None:
        self.plan, self.refused, self.device = plan, refused, device
        self.number = 0

    def mixed(self, kept: list[str]) -> EncoderArtefacts | None:
        """Return the artefacts of the net with the products `kept` in float32; None if the gate refuses it."""
        search = Search("int8", tuple(kept))
        made = replace(self._written((self.refused.nets[self.device].variant,), search.kept), search=search)
        try:
            return _gated(self.plan, made, self.device)
        except VerificationFailed:
            return None

    def exact(self) -> EncoderArtefacts:
        """Return the artefacts of the fp32 net, by the runtime that the user names."""
        return self._written(offered(self.device, EXACT, self.plan.cpu_runtime))

    def speedup(self, mixed: EncoderArtefacts, exact: EncoderArtefacts) -> float:
        """Return how many times as fast as in fp32 the mixed net computes, measured in turn."""
        nets = {"mixed": mixed.nets[self.device], "exact": exact.nets[self.device]}
        times = mixed.timer(self.plan).in_turn(nets)
        means = {name: geometric_mean(each.values()) for name, each in times.items()}
        return float(f"{means['exact'] / means['mixed']:.3g}")

    def published(self, artefacts: EncoderArtefacts) -> EncoderArtefacts:
        """Return the artefacts whose net has its variant's file; the files of all others are removed."""
        net = artefacts.nets[self.device]
        folder, refused = net.path.parent, self.refused.nets[self.device].path
        for path in {refused, *folder.glob(f"{TRIED}*.onnx"), *folder.glob("*.so")} - net.files:
            remove(path)
        rename(net.path, net.path.with_name(net.variant.file))
        net = replace(net, path=net.path.with_name(net.variant.file))
        artefacts = replace(artefacts, nets={**artefacts.nets, self.device: net})
        _configure(self.plan, artefacts)
        return artefacts

    def _written(self, variants: tuple[Variant, ...], kept: tuple[str, ...] = ()) -> EncoderArtefacts:
        """Write the net of the fastest of `variants`, and the configuration with which it is opened."""
        self.number += 1
        nets = write(self.plan, self.refused, variants, kept)
        made = choose(self.plan, self.refused, self.device, nets, f"{TRIED}{self.number}.onnx")
        _configure(self.plan, made)
        return made


def _configure(plan: EncoderPlan, artefacts: EncoderArtefacts) -> None:
    folders.write_net(plan, artefacts.net_folder(plan).parent, artefacts.inputs, artefacts.nets)


def _gated(plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device) -> EncoderArtefacts:
    """Return the artefacts with the figures of the gate and of the user's data. Raises VerificationFailed."""
    compared = compare(plan, artefacts, device)
    return measure(plan, compared, device) if plan.verify_data else compared
