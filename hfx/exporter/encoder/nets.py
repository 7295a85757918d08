"""Write the ONNX files of an encoder's net, choose one for each device, and hold the artefacts of an export."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from hfx import names
from hfx.exporter.encoder.calibration import CALIBRATED, TEMPERATURE
from hfx.exporter.encoder.gate import Reference
from hfx.exporter.encoder.graph.build import remove, rename
from hfx.exporter.encoder.one_hop import Compiled, known
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.labelled_data import LabelledData
from hfx.exporter.mixed_precision import SEARCH, Search
from hfx.exporter.runtime import Timer
from hfx.exporter.steps import Artefacts
from hfx.exporter.variants.variant import Net, Source, Variant
from hfx.local import Device


@dataclass(frozen=True)
class EncoderArtefacts(Artefacts):
    """The results of the steps so far; the comment of each field names the step that sets it."""

    model: Any = None  # load
    pooler: Any = None  # load
    labelled: dict[str, LabelledData] = field(default_factory=dict)  # load
    proof: Future[Compiled] = field(default_factory=lambda: known(Compiled()))  # compile_tokenizer
    graph: onnx.ModelProto | None = None  # build
    inputs: tuple[str, ...] = ()  # build
    candidates: Mapping[Device, tuple[Net, ...]] = field(default_factory=dict)  # write_files
    nets: Mapping[Device, Net] = field(default_factory=dict)  # choose_nets
    reference: Reference | None = None  # answer_in_torch
    search: Search | None = None  # compare_answers: after the gate has refused int8
    answered: dict[str, tuple[LabelledData, Reference]] = field(default_factory=dict)  # answer_data_in_torch

    @property
    def temperature(self) -> float | None:
        """The number by which the logits are divided; None without --calibrate."""
        calibrated = self.choices.get(CALIBRATED)
        return float(calibrated[TEMPERATURE]) if calibrated else None

    def net_folder(self, plan: EncoderPlan) -> Path:
        """Return the version folder of NAME_net."""
        return self.staging.root / (plan.name + names.NET_SUFFIX) / "1"

    def timer(self, plan: EncoderPlan) -> Timer:
        """Return the timer of the net's files."""
        return Timer(self.inputs, plan.kind.item_rank, plan.threads, plan.max_length, plan.kind.vectors)

    def published(self, plan: EncoderPlan) -> EncoderPlan:
        """Return the plan with the precisions of the nets that are published."""
        return replace(plan, built={device: self.nets[device].variant.precision for device in plan.built})


def write_files(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write the ONNX files of all variants."""
    artefacts.staging.folder(plan.name + names.NET_SUFFIX)
    artefacts.net_folder(plan).mkdir()
    kept = plan.searched.kept if plan.searched else ()
    # The files for GPUs come last: writing them waits until the tokenizer is proven.
    written = [(device, write(plan, artefacts, variants, kept)) for device, variants in plan.variants.items()]
    searched = {} if plan.searched is None else {SEARCH: plan.searched.as_json()}
    return replace(artefacts, candidates=dict(reversed(written)), choices={**artefacts.choices, **searched})


def write(
    plan: EncoderPlan, artefacts: EncoderArtefacts, variants: tuple[Variant, ...], kept: tuple[str, ...] = ()
) -> tuple[Net, ...]:
    """Write the file of each of `variants`, in which the products `kept` stay float32, and return the nets."""
    assert artefacts.graph is not None
    # Graphs and sessions of earlier files are in reference cycles: 2.5 GB after four files of a BERT-base.
    gc.collect()
    source = Source(
        artefacts.graph,
        artefacts.model,
        artefacts.inputs,
        artefacts.net_folder(plan),
        kept,
        lambda: bool(artefacts.proof.result().content),
        plan.kind.takes_empty,
    )
    return tuple(variant.write(source) for variant in variants)


def choose_nets(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Choose the net of each device that is fastest on this machine, and remove the files of the others."""
    for device, candidates in artefacts.candidates.items():
        artefacts = choose(plan, artefacts, device, candidates)
    graph = artefacts.graph if any(map(plan.searches, plan.built)) else None
    return replace(artefacts, graph=graph, candidates={})


def choose(
    plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device, candidates: tuple[Net, ...], file: str = ""
) -> EncoderArtefacts:
    """Choose the fastest of `candidates`, remove the others, and rename its file to that of its variant, or to `file`.

    Raises CheckpointUnsupported if the graph fails.
    """
    net, timer = candidates[0], artefacts.timer(plan)
    if net.variant.is_timed:
        by_runtime = {each.variant.runtime: each for each in candidates}
        choice = timer.choose(by_runtime)
        net = replace(by_runtime[choice.runtime], choice=choice)
    # A search may return to an earlier net, which needs the libraries of operators.
    for path in {path for each in candidates for path in ({each.path} if file else each.files)} - net.files:
        remove(path)
    target = net.path.with_name(file or net.variant.file)
    if target != net.path:
        rename(net.path, target)
    net = replace(net, path=target)
    earlier = artefacts.nets[device].record if device in artefacts.nets else {}
    choices = {name: value for name, value in artefacts.choices.items() if name not in earlier}
    choices |= {**net.record}
    if net.choice is not None:
        choices |= {"cpu_runtime": net.choice.as_json(plan.cpu_runtime), "threads": plan.threads}
    choices |= net.variant.measured(net)
    return replace(artefacts, nets={**artefacts.nets, device: net}, choices=choices)
