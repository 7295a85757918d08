"""The export, as the literal lists of its steps: an encoder's is here, a generator's in generation/steps.py.

Each step takes the plan and what has been made so far, and returns what has been made then. Nothing enters the
repository before the last one; a failure or a kill anywhere leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx import names
from hfx.errors import VerificationFailed
from hfx.exporter import folders, runtime
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.options import Precision
from hfx.exporter.plan import ExportPlan, Plan
from hfx.exporter.publication import GraphFacts, check_rules, seal
from hfx.exporter.step import Step
from hfx.manifest import Manifest
from hfx.repository import Staging, check_target, publish, recover

if TYPE_CHECKING:
    import onnx

    from hfx.exporter.graph.pooling import Pooling
    from hfx.exporter.parity.gate import Reference

FILE_NAMES: dict[Precision, str] = {"fp32": "model.onnx", "fp16": "model.fp16.onnx", "int8": "model.int8.onnx"}


@dataclass(frozen=True)
class Artefacts:
    """What the steps have made; a field is set by the step that its comment names."""

    staging: Staging
    model: Any = None  # load
    tokenizer: Any = None  # load
    pooling: Pooling | None = None  # load
    graph: onnx.ModelProto | None = None  # build
    inputs: tuple[str, ...] = ()  # build
    files: dict[str, str] = field(default_factory=dict)  # write_nets: device -> file name
    candidates: dict[runtime.Runtime, tuple[runtime.CpuChoice, Path]] = field(default_factory=dict)  # write_nets
    choice: runtime.CpuChoice | None = None  # choose_runtime; None where nothing is built for CPU
    choices: dict[str, Any] = field(default_factory=dict)
    reference: Reference | None = None  # answer_in_torch
    parity: dict[str, Any] = field(default_factory=dict)
    manifest: Manifest | None = None  # seal

    def net_folder(self, plan: ExportPlan) -> Path:
        """The version folder of NAME_net."""
        return self.staging.root / (plan.name + names.NET_SUFFIX) / "1"


def load(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """The checkpoint's model and tokenizer in memory, checked."""
    from hfx.exporter.load import load_model
    from hfx.exporter.sentence_transformers import read_pooling
    from hfx.exporter.tokenizer import load_tokenizer

    task = plan.task
    pooling = read_pooling(plan.checkpoint.folder) if task.headless else None
    tokenizer = load_tokenizer(plan.checkpoint)
    model = load_model(plan.checkpoint, task.auto_class, task.headless)
    return replace(made, model=model, tokenizer=tokenizer, pooling=pooling)


def build(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """The float32 graph."""
    from hfx.exporter.build import build_graph
    from hfx.exporter.tokenizer import pad_id

    padding = pad_id(plan.checkpoint, made.tokenizer)
    graph = build_graph(made.model, plan.task, plan.opset, padding, made.pooling, plan.exporter)
    inputs = tuple(value.name for value in graph.graph.input if value.name != names.ITEM_SHAPE)
    return replace(made, graph=graph, inputs=inputs)


def write_nets(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """The ONNX files of every precision, in the form of every runtime that may serve it."""
    from hfx.exporter.build import save
    from hfx.exporter.quantize import encoder as quantize

    made.staging.folder(plan.name + names.NET_SUFFIX)
    folder = made.net_folder(plan)
    folder.mkdir()
    graph, files = made.graph, {}
    assert graph is not None
    if plan.gpu_precision:
        files["gpu"] = FILE_NAMES[plan.gpu_precision]
        save(quantize.half(graph) if plan.gpu_precision == "fp16" else graph, folder / files["gpu"])
    candidates: dict[runtime.Runtime, tuple[runtime.CpuChoice, Path]] = {}
    counts: dict[str, Any] = {}
    for name in runtime.possible_runtimes(plan.cpu_runtime) if plan.cpu_precision else ():
        files["cpu"] = FILE_NAMES[plan.cpu_precision or "fp32"]
        path = folder / (files["cpu"] if plan.cpu_precision == "fp32" else f"{name}.{files['cpu']}")
        group = None
        if plan.cpu_precision == "int8":
            quantized = (
                quantize.weight_only(graph) if name == "openvino" else quantize.row_wise(graph, runtime.weight_levels())
            )
            counts["int8_weights"] = quantized.weights
            save(quantized.model, path)
            group = int(made.model.config.hidden_size)
        elif not path.exists():
            save(graph, path)
        candidates[name] = (runtime.CpuChoice(name, group if name == "openvino" else None), path)
    return replace(made, files=files, candidates=candidates, choices={**made.choices, **counts}, graph=None)


def choose_runtime(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """The CPU runtime that is fastest here; the files of the others go."""
    if not made.candidates:
        return made
    choice = runtime.choose(made.candidates, made.inputs, plan.task.item_rank, plan.threads, plan.max_length)
    kept = made.net_folder(plan) / made.files["cpu"]
    path = made.candidates[choice.runtime][1]
    if path != kept:
        path.rename(kept)
    for _, other in made.candidates.values():
        if other != kept:
            other.unlink(missing_ok=True)
    choices = {**made.choices, "cpu_runtime": choice.as_json(plan.cpu_runtime), "threads": plan.threads}
    if plan.cpu_precision == "fp32" and choice.runtime == "onnxruntime":
        from hfx.exporter.runtime import online_fusions

        choices["fused_operators"] = online_fusions(kept)
    return replace(made, choice=choice, choices=choices, candidates={})


def write_folders(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """Everything beside the ONNX files: configurations, tokenizer, Python backends."""
    folders.write_ensemble(plan, made.staging, made.inputs)
    folders.write_tokenizer(plan, made.staging, made.inputs, made.tokenizer)
    folders.write_net(plan, made.net_folder(plan).parent, made.inputs, made.files, made.choice)
    folders.write_postprocess(plan, made.staging, made.tokenizer)
    return made


def answer_in_torch(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """The checkpoint's own answers to the bundled texts, from the staged tokenizer's tokens."""
    from hfx.exporter.parity.gate import check_tokens, make_reference
    from hfx.exporter.parity.recorded import FILE as RECORDED_FILE
    from hfx.exporter.parity.recorded import Recorded, write_recorded
    from hfx.exporter.parity.texts import bundled_texts, edge_texts
    from hfx.exporter.tokenizer import with_embeddings
    from hfx.local.encoder import LocalModel

    model = LocalModel.open(made.staging.root, plan.name, _device(made), "CPU")
    texts = [*bundled_texts(), *edge_texts(plan.max_length)]
    requests = plan.task.samples(with_embeddings(plan.checkpoint, made.tokenizer, texts))
    reference = make_reference(model, plan.task, requests, made.model, made.inputs, made.pooling)
    checked = check_tokens(model, plan.task, made.tokenizer, reference)
    recorded = Recorded(tuple(map(dict, reference.requests)), tuple(reference.answers))
    write_recorded(recorded, made.staging.root / plan.name / RECORDED_FILE)
    return replace(made, reference=reference, parity={"tokenized_alike": checked})


def compare_answers(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """Every file against the checkpoint; VerificationFailed with the figures where one differs too much."""
    from hfx.exporter.parity import gate
    from hfx.exporter.parity.gate import limits
    from hfx.local.encoder import LocalModel

    assert made.reference is not None
    parity = dict(made.parity)
    for device, precision in _built(plan).items():
        model = LocalModel.open(made.staging.root, plan.name, device, "CPU")  # type: ignore[arg-type]
        figures = gate.measure(model, plan.task, made.reference)
        parity[device] = {"precision": precision, **figures.as_json()}
        gate.judge(f"The {precision} file for {device.upper()}", figures, limits(precision, plan.max_drop))
    return replace(made, parity=parity)


def measure_on_data(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """The task's metric on the user's data, torch against every file."""
    from hfx.exporter.parity.data import read_data
    from hfx.exporter.parity.gate import DEFAULT_MAX_DROP, make_reference
    from hfx.local.encoder import LocalModel

    results: dict[str, Any] = {}
    max_drop = DEFAULT_MAX_DROP if plan.max_drop is None else plan.max_drop
    for path in plan.verify_data:
        data = read_data(path, plan.task, plan.checkpoint.config)
        model = LocalModel.open(made.staging.root, plan.name, _device(made), "CPU")
        reference = make_reference(model, plan.task, data.requests, made.model, made.inputs, made.pooling)
        expected = plan.task.metric(reference.answers, data.targets)
        figures: dict[str, Any] = {"metric": plan.task.metric_name, "rows": len(data.targets), "torch": expected}
        for device in _built(plan):
            model = LocalModel.open(made.staging.root, plan.name, device, "CPU")  # type: ignore[arg-type]
            outputs = model.run(reference.encoded)
            answers = [model.answer(r, e, o) for r, e, o in zip(data.requests, reference.encoded, outputs, strict=True)]
            figures[device] = plan.task.metric(answers, data.targets)
            if not expected - figures[device] <= max_drop:  # NaN fails
                raise VerificationFailed(
                    f"{plan.task.metric_name} on {path.name} falls from {expected:.4f} (torch) to "
                    f"{figures[device]:.4f} ({device}), by more than {max_drop:g}.",
                    "Nothing was published. Use another --precision, or accept more with --max-drop.",
                )
        results[path.name] = figures
    return replace(made, parity={**made.parity, "data": results} if results else made.parity)


def seal_net(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """The manifest: every file hashed, every figure kept."""
    import onnx

    net = onnx.load(made.net_folder(plan) / next(iter(made.files.values())), load_external_data=False)
    graph = GraphFacts(plan.opset, net.ir_version)
    return replace(made, manifest=seal(plan, made.staging, graph, made.parity, made.choices))


def lint_staged(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """The repository's own rules on the staged folders."""
    check_rules(plan, made.staging)
    return made


def publish_folders(plan: ExportPlan, made: Artefacts) -> Artefacts:
    """Into the repository, by renames."""
    publish(made.staging, replace=plan.force)
    return made


STEPS: tuple[Step[ExportPlan, Artefacts], ...] = (
    Step("Loading the checkpoint", load),
    Step("Building the graph", build),
    Step("Writing ONNX files", write_nets),
    Step("Timing CPU runtimes", choose_runtime),
    Step("Writing model folders", write_folders),
    Step("Answering with the checkpoint", answer_in_torch),
    Step("Comparing answers", compare_answers),
    Step("Measuring on your data", measure_on_data),
    Step("Hashing files", seal_net),
    Step("Checking the repository's rules", lint_staged),
    Step("Publishing", publish_folders),
)

Progress = Callable[[str], AbstractContextManager[object]]


def export(plan: Plan, progress: Progress, steps: Iterable[Step[Any, Any]] | None = None) -> Manifest:
    """Run the steps of the plan's kind; `progress(title)` is entered around each. Returns what was published."""
    recover(plan.repository)
    check_target(plan.repository, plan.name, plan.force)
    with Staging(plan.repository, plan.name) as staging:
        made, usual = _beginning(plan, staging)
        for step in usual if steps is None else steps:
            with progress(step.title):
                made = step.run(plan, made)
    manifest: Manifest | None = made.manifest
    assert manifest is not None
    return manifest


def _beginning(plan: Plan, staging: Staging) -> tuple[Any, Iterable[Step[Any, Any]]]:
    """What the first step starts with, and the steps of the plan's kind."""
    if isinstance(plan, GeneratorPlan):
        from hfx.exporter.generation.steps import STEPS as GENERATOR_STEPS
        from hfx.exporter.generation.steps import Artefacts as GeneratorArtefacts

        return GeneratorArtefacts(staging), GENERATOR_STEPS
    return Artefacts(staging), STEPS


def _built(plan: ExportPlan) -> dict[str, Precision]:
    built = {"cpu": plan.cpu_precision, "gpu": plan.gpu_precision}
    return {device: precision for device, precision in built.items() if precision}


def _device(made: Artefacts) -> Any:
    return "cpu" if "cpu" in made.files else "gpu"
