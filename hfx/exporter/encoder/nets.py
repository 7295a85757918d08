"""Write the ONNX files of an encoder's net, choose the CPU runtime, and hold the artefacts of an encoder's export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import onnx

from hfx import names
from hfx.exporter import runtime
from hfx.exporter.encoder import folders, gate
from hfx.exporter.encoder.build import inlined, remove, rename, save, save_beside
from hfx.exporter.encoder.fusion import fuse, rows_file, rows_graph
from hfx.exporter.encoder.one_hop import Compiled
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.labelled_data import LabelledData
from hfx.exporter.mixed_precision import SEARCH, Search
from hfx.exporter.options import CpuMath, Precision
from hfx.exporter.quantize.encoder import half, row_source, row_wise, weight_only
from hfx.exporter.quantize.products import weights_of
from hfx.exporter.steps import Artefacts
from hfx.local import Device
from hfx.local.encoder import LocalModel
from hfx.python_backends.onnxruntime.config import OPERATORS

FILE_NAMES: dict[Precision, str] = {"fp32": "model.onnx", "fp16": "model.fp16.onnx", "int8": "model.int8.onnx"}
GPU_FILE_NAMES: dict[Precision, str] = {"fp32": "model.gpu.onnx", "fp16": "model.fp16.onnx"}
Candidates = dict[runtime.Runtime, tuple[runtime.CpuChoice, Path]]


@dataclass(frozen=True)
class EncoderArtefacts(Artefacts):
    """The results of the steps so far; the comment of each field names the step that sets it."""

    model: Any = None  # load
    pooler: Any = None  # load
    labelled: dict[str, LabelledData] = field(default_factory=dict)  # load
    compiled: Compiled = field(default_factory=Compiled)  # compile_tokenizer
    graph: onnx.ModelProto | None = None  # build
    inputs: tuple[str, ...] = ()  # build
    files: dict[Device, str] = field(default_factory=dict)  # write_nets: file names
    candidates: Candidates = field(default_factory=dict)  # write_nets
    reference: gate.Reference | None = None  # answer_in_torch
    tokenizing: LocalModel | None = None  # answer_in_torch: the model whose tokenizer it used
    search: Search | None = None  # compare_answers, measure_on_data: after the gate has refused int8
    answered: dict[str, tuple[LabelledData, gate.Reference]] = field(default_factory=dict)  # answer_data_in_torch

    def net_folder(self, plan: EncoderPlan) -> Path:
        """The version folder of NAME_net."""
        return self.staging.root / (plan.name + names.NET_SUFFIX) / "1"


def write_nets(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write the ONNX files of each precision, in the form of each runtime that may serve it."""
    artefacts.staging.folder(plan.name + names.NET_SUFFIX)
    folder = artefacts.net_folder(plan)
    folder.mkdir()
    if plan.gpu_precision:
        artefacts = _write_gpu_nets(plan, artefacts)
    if plan.cpu_precision:
        artefacts = write_cpu_nets(plan, artefacts)
    searched = {} if plan.searched is None else {SEARCH: plan.searched.as_json()}
    graph = artefacts.graph if plan.searches else None
    return replace(artefacts, graph=graph, choices={**artefacts.choices, **searched})


def _write_gpu_nets(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write the ONNX file for GPUs and, if C++ may run the model, that of rectangular batches with the same weights."""
    assert artefacts.graph is not None and plan.gpu_precision is not None
    fused, name = fuse(artefacts.graph), GPU_FILE_NAMES[plan.gpu_precision]
    path = artefacts.net_folder(plan) / name
    save(half(fused.model) if plan.gpu_precision == "fp16" else fused.model, path)
    rows = artefacts.compiled.content and rows_graph(onnx.load(path, load_external_data=False), plan.kind.takes_empty)
    if rows:
        save_beside(rows, rows_file(path))
    graph = {"fused_attentions": fused.attentions, "traced_attentions": fused.traced, "rows_file": bool(rows)}
    return replace(artefacts, files={"gpu": name}, choices={**artefacts.choices, "gpu_graph": graph})


def write_cpu_nets(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write the ONNX files in the precision for CPUs, in the form of each runtime that may serve it."""
    assert plan.cpu_precision is not None
    folder, name = artefacts.net_folder(plan), FILE_NAMES[plan.cpu_precision]
    requested = "openvino" if plan.cpu_math == "bf16" else plan.cpu_runtime
    runtimes = runtime.possible_runtimes(requested, plan.cpu_precision)
    assert artefacts.graph is not None
    candidates, counts = Candidates(), dict[str, Any]()
    if plan.cpu_precision == "int8":
        group = int(artefacts.model.config.hidden_size)
        kept = plan.searched.kept if plan.searched else ()
        floats = weights_of(row_source(artefacts.graph), kept) if kept else frozenset()
        candidates, counts["int8_weights"] = _write_int8(artefacts.graph, folder, runtimes, group, floats)
    else:
        path = folder / name
        if not path.exists():
            save(inlined(artefacts.graph), path)
        candidates = {each: (runtime.CpuChoice(each, math=plan.cpu_math), path) for each in runtimes}
        counts["cpu_math"] = plan.cpu_math
    files, choices = {**artefacts.files, "cpu": name}, {**artefacts.choices, **counts}
    return replace(artefacts, files=files, candidates=candidates, choices=choices)


def _write_int8(
    graph: onnx.ModelProto,
    folder: Path,
    runtimes: Sequence[runtime.Runtime],
    group: int,
    kept: frozenset[str],
) -> tuple[Candidates, int]:
    """Write a file for OpenVINO, and a file for ONNX Runtime, with or without native operators.

    The weights whose names are in `kept` stay float32.
    Return the candidates and the number of int8 weights.
    """
    candidates, weights = Candidates(), 0
    if "openvino" in runtimes:
        path, quantized = folder / "openvino.onnx", weight_only(inlined(graph), kept)
        save(quantized.model, path)
        weights = quantized.weights
        candidates["openvino"] = runtime.CpuChoice("openvino", quantization_group=group), path
    if row_wise_runtimes := [name for name in runtimes if name != "openvino"]:
        path, quantized = folder / "onnxruntime.onnx", row_wise(graph, runtime.weight_levels(), kept)
        save(quantized.model, path)
        weights = quantized.weights
        for name in row_wise_runtimes:
            operators = folders.copy_operators(folder, quantized.skips_padding) if name == "native" else {}
            candidates[name] = runtime.CpuChoice(name, operators=operators), path
    return candidates, weights


def choose_runtime(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Choose the CPU runtime that is fastest on this machine, and remove the files of the others."""
    if not artefacts.candidates:
        return artefacts
    choice = runtime.choose(
        artefacts.candidates,
        artefacts.inputs,
        plan.kind.item_rank,
        plan.threads,
        plan.max_length,
        one_hop=bool(artefacts.compiled.content),
    )
    kept = artefacts.net_folder(plan) / artefacts.files["cpu"]
    path = artefacts.candidates[choice.runtime][1]
    if path != kept:
        rename(path, kept)
    for other, file in artefacts.candidates.values():
        if file != kept:
            remove(file)
        if other.operators and other.runtime != choice.runtime:
            (kept.parent / other.operators[OPERATORS]).unlink()
    choices = {**artefacts.choices, "cpu_runtime": choice.as_json(plan.cpu_runtime), "threads": plan.threads}
    if plan.cpu_precision == "fp32" and choice.runtime == "onnxruntime":
        choices["fused_operators"] = runtime.online_fusions(kept)
    if plan.cpu_math == "bf16":
        # In bfloat16, and in float32: some processors that have bfloat16 are slower in it.
        files = {math: (replace(choice, math=math), kept) for math in get_args(CpuMath)}
        choices["cpu_math_milliseconds"] = runtime.times_in_turn(
            files, artefacts.inputs, plan.kind.item_rank, plan.threads, plan.max_length
        )
    return replace(artefacts, choice=choice, choices=choices, candidates={})
