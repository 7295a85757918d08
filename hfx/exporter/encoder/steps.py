"""The export of an encoder, as the literal list of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from hfx import names
from hfx.errors import CheckpointUnsupported, RequestRefused, UsageError
from hfx.exporter import runtime
from hfx.exporter.encoder import folders, gate
from hfx.exporter.encoder.build import build_graph, clean, inlined, remove, rename, save
from hfx.exporter.encoder.masks import simplify_masks
from hfx.exporter.encoder.one_hop import Compiled, compile_and_prove
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.labelled_data import LabelledData, read_data
from hfx.exporter.options import Precision
from hfx.exporter.parity_texts import bundled_texts, edge_texts
from hfx.exporter.quantize.encoder import half, row_wise, weight_only
from hfx.exporter.steps import Artefacts, Step, lint_staged, publish_folders, seal
from hfx.exporter.tokenizer import pad_id, with_embeddings
from hfx.exporter.transformers_versions import gives_types
from hfx.exporter.verify import REFERENCE_FILE, Recorded, check_drop, write_recorded
from hfx.local import Device, Request
from hfx.local.encoder import LocalModel
from hfx.python_backends.onnxruntime.config import OPERATORS
from hfx.python_backends.tasks import TASKS
from hfx.tasks.kinds import KIND

FILE_NAMES: dict[Precision, str] = {"fp32": "model.onnx", "fp16": "model.fp16.onnx", "int8": "model.int8.onnx"}
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

    def net_folder(self, plan: EncoderPlan) -> Path:
        """The version folder of NAME_net."""
        return self.staging.root / (plan.name + names.NET_SUFFIX) / "1"


def load(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Load and check the user's data, and the checkpoint's model and tokenizer."""
    labelled = {path.name: read_data(path, plan.task, plan.checkpoint.config) for path in plan.verify_data}
    tokenizer = plan.task.load_tokenizer(plan.checkpoint)
    model, pooler = plan.task.load_model(plan.checkpoint, tokenizer)
    pooling = plan.task.details()["pooling"]
    choices = {**artefacts.choices, KIND: str(plan.task.kind), **({"pooling": pooling} if pooling else {})}
    return replace(artefacts, model=model, tokenizer=tokenizer, pooler=pooler, labelled=labelled, choices=choices)


def compile_tokenizer(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Compile the tokenizer for the C++ code of `hfx serve`, if it is proven to give the same ids."""
    texts = [*bundled_texts(), *edge_texts(plan.max_length)]
    compiled = compile_and_prove(plan, artefacts.tokenizer, texts)
    return replace(artefacts, compiled=compiled, choices={**artefacts.choices, "tokenizer": compiled.as_json()})


def build(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Build the float32 graph."""
    padding = pad_id(plan.checkpoint, artefacts.tokenizer)
    types = gives_types(artefacts.tokenizer, plan.checkpoint.home)
    graph = build_graph(artefacts.model, plan.task, padding, artefacts.pooler, plan.exporter, types)
    simplify_masks(graph, plan.max_length)
    graph = clean(graph)
    inputs = tuple(value.name for value in graph.graph.input if value.name != names.ITEM_SHAPE)
    return replace(artefacts, graph=graph, inputs=inputs)


def write_nets(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write the ONNX files of each precision, in the form of each runtime that may serve it."""
    artefacts.staging.folder(plan.name + names.NET_SUFFIX)
    folder = artefacts.net_folder(plan)
    folder.mkdir()
    graph, files = artefacts.graph, dict[Device, str]()
    assert graph is not None
    plain = inlined(graph)
    if plan.gpu_precision:
        files["gpu"] = FILE_NAMES[plan.gpu_precision]
        save(half(plain) if plan.gpu_precision == "fp16" else plain, folder / files["gpu"])
    candidates, counts = Candidates(), dict[str, Any]()
    if plan.cpu_precision:
        files["cpu"] = FILE_NAMES[plan.cpu_precision]
        requested = "openvino" if plan.cpu_math == "bf16" else plan.cpu_runtime
        runtimes = runtime.possible_runtimes(requested, plan.cpu_precision)
        if plan.cpu_precision == "int8":
            group = int(artefacts.model.config.hidden_size)
            candidates, counts["int8_weights"] = _write_int8(graph, plain, folder, runtimes, group)
        else:
            path = folder / files["cpu"]
            if not path.exists():
                save(plain, path)
            candidates = {name: (runtime.CpuChoice(name, math=plan.cpu_math), path) for name in runtimes}
            counts["cpu_math"] = plan.cpu_math
    return replace(artefacts, files=files, candidates=candidates, choices={**artefacts.choices, **counts}, graph=None)


def _write_int8(
    graph: onnx.ModelProto, plain: onnx.ModelProto, folder: Path, runtimes: Sequence[runtime.Runtime], group: int
) -> tuple[Candidates, int]:
    """Write a file for OpenVINO, made from `plain`, and a file for ONNX Runtime, with or without native operators.

    Return the candidates and the number of int8 weights.
    """
    candidates, weights = Candidates(), 0
    if "openvino" in runtimes:
        path, quantized = folder / "openvino.onnx", weight_only(plain)
        save(quantized.model, path)
        weights = quantized.weights
        candidates["openvino"] = runtime.CpuChoice("openvino", quantization_group=group), path
    if row_wise_runtimes := [name for name in runtimes if name != "openvino"]:
        path, quantized = folder / "onnxruntime.onnx", row_wise(graph, runtime.weight_levels())
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
        plan.task.item_rank,
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
        choices["cpu_math_milliseconds"] = runtime.times_of_math(
            choice, kept, artefacts.inputs, plan.task.item_rank, plan.threads, plan.max_length
        )
    return replace(artefacts, choice=choice, choices=choices, candidates={})


def write_folders(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write everything but the ONNX files: configurations, tokenizer, Python backends."""
    folders.write_ensemble(plan, artefacts.staging, artefacts.inputs)
    folders.write_tokenizer(plan, artefacts.staging, artefacts.inputs, artefacts.tokenizer, artefacts.compiled)
    folders.write_net(plan, artefacts.net_folder(plan).parent, artefacts.inputs, artefacts.files, artefacts.choice)
    folders.write_postprocess(plan, artefacts.staging, artefacts.tokenizer)
    return artefacts


def answer_in_torch(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Get the checkpoint's own answers to the bundled texts, from the tokens of the staged tokenizer."""
    texts = [*bundled_texts(), *edge_texts(plan.max_length)]
    samples = plan.task.samples(with_embeddings(plan.checkpoint, artefacts.tokenizer, texts))
    samples = [sample | plan.options_of(i) for i, sample in enumerate(samples)]
    try:
        model, reference = _reference(plan, artefacts, [each for each in samples if _has_tokens(plan, artefacts, each)])
    except RequestRefused as refusal:
        raise CheckpointUnsupported(
            f"{plan.checkpoint.id} can't take a text that every export is compared by. {refusal.message}",
            "Where it reads too few tokens, a larger model_max_length in tokenizer_config.json may help.",
        ) from refusal
    checked = gate.check_tokens(model, plan.task, artefacts.tokenizer, reference)
    recorded = Recorded(tuple(map(dict, reference.requests)), tuple(reference.answers))
    write_recorded(recorded, artefacts.staging.root / plan.name / REFERENCE_FILE)
    return replace(artefacts, reference=reference, tokenizing=model, parity={"tokenized_alike": checked})


def _has_tokens(plan: EncoderPlan, artefacts: EncoderArtefacts, request: Request) -> bool:
    """Whether a request has any tokens and, for fill-mask, a mask that is not truncated.

    Other requests would be refused, so the caller leaves them out.

    If the tokenizer adds no special tokens, some texts have no tokens. In rows of several sequences, a question or a
    label always has some.
    """
    if plan.task.takes_empty or plan.task.item_rank > 1:
        return True
    [ids, *_] = plan.task.expected_ids(artefacts.tokenizer, dict(request), plan.max_length)
    return artefacts.tokenizer.mask_token_id in ids if TASKS[plan.task.task].of_masks else len(ids) > 0


def compare_answers(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Compare each file with the checkpoint. Raises VerificationFailed, with the figures, if one differs too much."""
    assert artefacts.reference is not None
    parity = dict(artefacts.parity)
    for device, precision in plan.built.items():
        model = artefacts.tokenizing if device == "cpu" else _opened(plan, artefacts, device)
        assert model is not None
        figures = gate.measure(model, plan.task, artefacts.reference)
        parity[device] = {"precision": precision, "kind": model.kind, **figures.as_json()}
        math = plan.cpu_math if device == "cpu" else "fp32"
        what = f"The {precision} file for {device.upper()}{' in bfloat16' if math == 'bf16' else ''}"
        gate.judge(what, figures, gate.limits(precision, plan.max_drop, math, labelled=bool(plan.verify_data)))
    return replace(artefacts, tokenizing=None, parity=parity)


def measure_on_data(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Measure the task's metric on the user's data, for torch and for each file."""
    results: dict[str, Any] = {}
    for file, data in artefacts.labelled.items():
        _, reference = _reference(plan, artefacts, data.requests)
        expected, metric = data.measured(plan.task, reference.answers), data.metric(plan.task)
        figures: dict[str, Any] = {"metric": metric, "rows": len(data.targets), "torch": expected}
        for device in plan.built:
            model = _opened(plan, artefacts, device)
            outputs = model.run(reference.encoded)
            answers = [model.answer(r, e, o) for r, e, o in zip(data.requests, reference.encoded, outputs, strict=True)]
            figures[device] = data.measured(plan.task, answers)
            check_drop(plan, metric, file, device, expected, figures[device])
        results[file] = figures
    return replace(artefacts, parity={**artefacts.parity, "data": results} if results else artefacts.parity)


def _opened(plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device) -> LocalModel:
    """Open the files for a device on that device; open files for GPUs on the CPU if there is no GPU."""
    if device == "gpu":
        with suppress(UsageError):
            return LocalModel.open(artefacts.staging.root, plan.name, "gpu", "GPU")
    return LocalModel.open(artefacts.staging.root, plan.name, device, "CPU")


def seal_net(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write the manifest."""
    return seal(plan, artefacts, artefacts.net_folder(plan) / next(iter(artefacts.files.values())))


def _reference(
    plan: EncoderPlan, artefacts: EncoderArtefacts, requests: Sequence[Request]
) -> tuple[LocalModel, gate.Reference]:
    """Return the model that tokenizes `requests` (the CPU's, if there is one), and the checkpoint's answers."""
    model = LocalModel.open(artefacts.staging.root, plan.name, next(iter(plan.built)), "CPU")
    reference = gate.make_reference(model, requests, artefacts.model, artefacts.inputs, artefacts.pooler)
    return model, reference


STEPS: tuple[Step[EncoderPlan, EncoderArtefacts], ...] = (
    Step("Loading the checkpoint", load),
    Step("Compiling the tokenizer", compile_tokenizer),
    Step("Building the graph", build),
    Step("Writing ONNX files", write_nets),
    Step("Timing CPU runtimes", choose_runtime),
    Step("Writing model folders", write_folders),
    Step("Running the checkpoint", answer_in_torch, gate=True),
    Step("Comparing answers", compare_answers, gate=True),
    Step("Measuring on your data", measure_on_data, gate=True, labelled=True),
    Step("Hashing files", seal_net),
    Step("Checking the lint rules", lint_staged),
    Step("Publishing", publish_folders),
)
