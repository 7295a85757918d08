"""The export of a generator, as the literal list of its steps.

Weights are copied by slices from the checkpoint's files to the engine's. torch holds the checkpoint in one step only,
and engines are open in other steps: each step frees its memory before the next begins.
"""

from __future__ import annotations

import resource
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hfx import names
from hfx.errors import CheckpointUnsupported
from hfx.exporter.gate_texts import read_gate_texts
from hfx.exporter.generation import folders, gate, mixed, runtimes
from hfx.exporter.generation.engine_folder import release_memory, write
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.prompts import (
    LongReader,
    Reader,
    check_languages,
    check_tokens,
    choose_prompts,
    effort_for,
)
from hfx.exporter.generation.reference import (
    DataReference,
    Reference,
    answer_data,
    make_reference,
    make_work,
    measure_data,
    recorded,
    texts_of,
)
from hfx.exporter.generation.torch_generator import TorchGenerator
from hfx.exporter.labelled_data import LabelledData, read_data
from hfx.exporter.mixed_precision import SEARCH, Precision
from hfx.exporter.model_files import copy_files
from hfx.exporter.runtime import CpuChoice, Runtime
from hfx.exporter.steps import Artefacts, Step, lint_staged, publish_folders, seal
from hfx.exporter.tokenizer import load_tokenizer, require_embeddings, with_embeddings
from hfx.exporter.verify import REFERENCE_FILE, Recorded, same_texts, write_recorded
from hfx.local import Device
from hfx.local.generator import LocalGenerator
from hfx.python_backends import deploy
from hfx.python_backends.engine.spec import EngineSpec, read_spec

LANGUAGES_TEXT = "A text."  # any text will do, as languages differ in special tokens only


@dataclass(frozen=True)
class GeneratorArtefacts(Artefacts):
    """The results of the steps; a comment names the step that sets a field."""

    labelled: dict[str, LabelledData] = field(default_factory=dict)  # read_tokenizer
    version: Path = Path()  # write_engines: NAME_stream/1
    chosen: dict[Device, CpuChoice] = field(default_factory=dict)  # choose_runtime
    reference: Reference | None = None  # answer_in_torch
    recorded: Recorded | None = None  # answer_in_torch
    data: tuple[DataReference, ...] = ()  # answer_in_torch
    built: dict[Device, Precision] = field(default_factory=dict)  # compare_engines: the precisions that passed

    def first_spec(self, plan: GeneratorPlan) -> EngineSpec:
        """Return the engine.json of the first device."""
        return read_spec(self.version / next(iter(plan.built)))


def read_tokenizer(plan: GeneratorPlan, artefacts: GeneratorArtefacts) -> GeneratorArtefacts:
    """Read and check the user's data and the checkpoint's tokenizer."""
    labelled = {path.name: read_data(path, plan.kind, plan.checkpoint.config) for path in plan.verify_data}
    tokenizer = load_tokenizer(plan.checkpoint)
    longest = plan.max_source or plan.max_length
    prefix = plan.settings.prefix
    texts = read_gate_texts(plan.checkpoint, tokenizer, longest, lambda text: [prefix + text], bool(labelled))
    choices = {**artefacts.choices, "texts": texts.as_json()}
    return replace(artefacts, tokenizer=tokenizer, texts=texts, labelled=labelled, choices=choices)


def write_engines(plan: GeneratorPlan, artefacts: GeneratorArtefacts) -> GeneratorArtefacts:
    """Write the graphs and weights of each device, directly from the checkpoint's tensors."""
    version = copy_files(artefacts.staging.folder(plan.name + names.STREAM_SUFFIX), deploy.stream_files())
    for device in plan.built:
        write(plan, version, device, runtimes.possible_runtimes(plan.cpu_runtime, plan.built[device]))
    return replace(artefacts, version=version)


def choose_runtime(plan: GeneratorPlan, artefacts: GeneratorArtefacts) -> GeneratorArtefacts:
    """Choose the runtime that serves on each device."""
    chosen = {device: runtimes.choose(plan, artefacts.version, device) for device in plan.built}
    return replace(artefacts, chosen=chosen)


def write_folders(plan: GeneratorPlan, artefacts: GeneratorArtefacts) -> GeneratorArtefacts:
    """Write everything besides the engines: configurations, tokenizer, settings."""
    folders.write_relay(plan, artefacts.staging)
    folders.write_stream_configs(plan, artefacts.version.parent, artefacts.chosen)
    folders.write_text_files(plan, artefacts.version, artefacts.tokenizer, artefacts.first_spec(plan))
    return artefacts


def answer_in_torch(plan: GeneratorPlan, artefacts: GeneratorArtefacts) -> GeneratorArtefacts:
    """Generate the checkpoint's own continuations of the gate's texts, and its answers to the user's data.

    Also compares the staged tokenizer with the checkpoint's.
    """
    tokenizer, version = artefacts.tokenizer, artefacts.version
    texts = with_embeddings(plan.checkpoint, tokenizer, [*artefacts.texts.ordinary, *artefacts.texts.made])
    checked = check_tokens(tokenizer, version, artefacts.texts.tokenized)
    checked += check_languages(tokenizer, version, LANGUAGES_TEXT)
    generator = TorchGenerator.open(plan, tokenizer)
    work = make_work(plan, version, effort_for(generator.parameters))
    reader = Reader(tokenizer, plan.settings.prefix, plan.max_source or plan.max_length - work.greedy.max_tokens)
    labelled = artefacts.labelled
    require_embeddings(plan.checkpoint, tokenizer, texts_of(labelled))
    prompts = choose_prompts(reader, texts_of(labelled), texts, work.effort)
    if not prompts:
        raise CheckpointUnsupported(
            f"{plan.checkpoint.id} reads {reader.longest} tokens of a text, too few for any.", "Raise --max-length."
        )
    long = _long_reader(plan, artefacts, generator).read([*texts_of(labelled), *texts])
    reference = make_reference(generator, prompts, work, long)
    data = answer_data(plan, labelled, generator, version)
    answers = recorded(reference, generator.text)
    write_recorded(answers, artefacts.staging.root / plan.name / REFERENCE_FILE)
    choices = {**artefacts.choices, "parameters": reference.parameters, "verified_by": asdict(work.effort)}
    del generator
    release_memory()
    return replace(
        artefacts,
        reference=reference,
        data=data,
        recorded=answers,
        parity={"tokenized_alike": checked},
        choices=choices,
    )


def _long_reader(plan: GeneratorPlan, artefacts: GeneratorArtefacts, generator: TorchGenerator) -> LongReader:
    spec = artefacts.first_spec(plan)
    return LongReader(
        artefacts.tokenizer,
        plan.settings.prefix,
        plan.settings.decoder_start_token_ids,
        min(spec.vocab_size, generator.model.get_input_embeddings().num_embeddings),
        spec.heads,
        min(spec.max_length, plan.max_length),
        min(spec.max_source, plan.max_source or 0),
    )


def compare_engines(plan: GeneratorPlan, artefacts: GeneratorArtefacts) -> GeneratorArtefacts:
    """Compare every engine with the checkpoint, by ids, on the user's data, and then as text.

    If one in int8 or int4 is refused, another one may take its place.
    Raises VerificationFailed if one differs too much.
    """
    assert artefacts.reference is not None
    comparer = gate.Gate(plan, artefacts.version, artefacts.reference, partial(_measured, plan, artefacts))
    data: dict[str, dict[str, Any]] = {
        each.file: {"metric": plan.kind.metric_name, "rows": len(each.data.targets), "torch": each.torch}
        for each in artefacts.data
    }
    parity, formats, chosen, built = dict(artefacts.parity), {}, dict(artefacts.chosen), dict[Device, Precision]()
    record = plan.searched
    for device in plan.built:
        compared, chosen[device], search = mixed.compare(comparer, device, chosen[device])
        built[device], record = compared.precision, record or search
        folders.write_stream_configs(plan, artefacts.version.parent, chosen)
        # Texts are compared for the runtime that serves only: its reserve turns ids into text by the same code.
        texts = _same_texts(plan, artefacts, compared) if compared.served else None
        parity[device], formats[device] = compared.parity(texts), compared.choice
        for number, (runtime, values) in enumerate(compared.data.items()):
            for file, value in values.items():
                data[file][f"{device} {runtime}" if number else device] = value
    choices = {**artefacts.choices, "formats": formats, **({SEARCH: record.as_json()} if record else {})}
    if data:
        parity["data"] = data
    return replace(artefacts, parity=parity, chosen=chosen, choices=choices, built=built)


def _same_texts(plan: GeneratorPlan, artefacts: GeneratorArtefacts, compared: gate.Comparison) -> dict[str, Any]:
    assert artefacts.recorded is not None
    root, kind = artefacts.staging.root, gate.KINDS[compared.provider]
    with LocalGenerator.open(root, plan.name, compared.device, kind, compared.served) as model:
        figures = same_texts(model.infer_all(artefacts.recorded.requests), artefacts.recorded)
    release_memory()
    return figures


def _measured(
    plan: GeneratorPlan, artefacts: GeneratorArtefacts, compared: gate.Comparison
) -> dict[Runtime, dict[str, float]]:
    """Return the task's metric on the user's data, for every runtime that was compared.

    Raises VerificationFailed if one is too far below torch's.
    """
    values, kind = dict[Runtime, dict[str, float]](), gate.KINDS[compared.provider]
    for runtime in compared.figures if artefacts.data else ():
        with LocalGenerator.open(artefacts.staging.root, plan.name, compared.device, kind, runtime) as model:
            values[runtime] = measure_data(plan, compared.device, model, artefacts.data)
        release_memory()
    return values


def seal_model(plan: GeneratorPlan, artefacts: GeneratorArtefacts) -> GeneratorArtefacts:
    """Write the manifest, with the hash of every file and with every figure and decision."""
    spec = artefacts.first_spec(plan)
    choices = {
        **artefacts.choices,
        **({"cpu_runtime": artefacts.chosen["cpu"].as_json(plan.cpu_runtime)} if "cpu" in plan.built else {}),
        "slots": plan.slots,
        "max_queue": plan.max_queue,
        "threads": plan.threads,
        "max_length": plan.max_length,
        "max_source": plan.max_source,
        "settings_from": list(plan.settings.origins),
        "minimum_onnxruntime": spec.minimum_onnxruntime,
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    return seal(
        replace(plan, built=artefacts.built or plan.built), replace(artefacts, choices=choices), spec.files.decoder[1]
    )


STEPS: tuple[Step[GeneratorPlan, GeneratorArtefacts], ...] = (
    Step("Loading the tokenizer", read_tokenizer),
    Step("Writing engines", write_engines),
    Step("Testing the CPU runtime", choose_runtime),
    Step("Writing model folders", write_folders),
    Step("Generating texts with the checkpoint", answer_in_torch, gate=True),
    Step("Comparing texts", compare_engines, gate=True),
    Step("Hashing files", seal_model),
    Step("Checking the lint rules", lint_staged),
    Step("Publishing", publish_folders),
)
