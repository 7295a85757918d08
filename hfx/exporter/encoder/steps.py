"""The export of an encoder, as the literal list of its steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hfx import names
from hfx.exporter.encoder import calibration, folders
from hfx.exporter.encoder.comparisons import answer_data_in_torch, answer_in_torch, compare, measure
from hfx.exporter.encoder.graph.build import build_graph, clean
from hfx.exporter.encoder.graph.masks import simplify_masks
from hfx.exporter.encoder.mixed import checked
from hfx.exporter.encoder.nets import EncoderArtefacts, choose_nets, write_files
from hfx.exporter.encoder.one_hop import start_proof
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.gate_texts import read_gate_texts
from hfx.exporter.labelled_data import read_data
from hfx.exporter.steps import Step, lint_staged, publish_folders, seal
from hfx.exporter.tokenizer import pad_id
from hfx.exporter.transformers_versions import gives_types
from hfx.tasks.kinds import KIND

VARIANTS = "variants"  # in the manifest's choices: device -> name of the variant


def load(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Load and check the user's data, and the checkpoint's model and tokenizer."""
    labelled = {path.name: read_data(path, plan.kind, plan.checkpoint.config) for path in plan.verify_data}
    tokenizer = plan.kind.load_tokenizer(plan.checkpoint)
    texts = read_gate_texts(plan.checkpoint, tokenizer, plan.max_length, plan.kind.read_as, bool(labelled))
    model, pooler = plan.kind.load_model(plan.checkpoint, tokenizer)
    pooling = plan.kind.details()["pooling"]
    choices = {**artefacts.choices, KIND: str(plan.kind.name), **({"pooling": pooling} if pooling else {})}
    choices |= {"texts": texts.as_json()}
    read = replace(artefacts, tokenizer=tokenizer, texts=texts, labelled=labelled, choices=choices)
    if plan.calibrate is not None:
        data = labelled[plan.calibrate.name]
        choices |= {calibration.CALIBRATED: calibration.fit(plan, data, tokenizer, model, pooler)}
    return replace(read, model=model, pooler=pooler, choices=choices)


def compile_tokenizer(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Begin to compile the tokenizer for the C++ code of `hfx serve`, and to prove that it gives the same ids."""
    return replace(artefacts, proof=start_proof(plan, artefacts.tokenizer, artefacts.texts.tokenized))


def prove_tokenizer(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Take the compiled tokenizer, if it is proven to give the same ids."""
    return replace(artefacts, choices={**artefacts.choices, "tokenizer": artefacts.proof.result().as_json()})


def build(plan: EncoderPlan, artefacts: EncoderArtefacts, adapted: Collection[str] = ()) -> EncoderArtefacts:
    """Build the float32 graph, in which the layers `adapted` stay apart."""
    padding = pad_id(plan.checkpoint, artefacts.tokenizer)
    types = gives_types(artefacts.tokenizer, plan.checkpoint.home)
    graph = build_graph(artefacts.model, plan.kind, padding, artefacts.pooler, plan.exporter, types, adapted)
    simplify_masks(graph, plan.max_length)
    if (temperature := artefacts.temperature) is not None:
        calibration.divide(graph, temperature)
    graph = clean(graph)
    inputs = tuple(value.name for value in graph.graph.input if value.name != names.ITEM_SHAPE)
    return replace(artefacts, graph=graph, inputs=inputs)


def write_folders(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write everything but the ONNX files: configurations, tokenizer, Python backends."""
    folders.write_ensemble(plan, artefacts.staging, artefacts.inputs)
    folders.write_tokenizer(plan, artefacts.staging, artefacts.inputs, artefacts.tokenizer, artefacts.proof.result())
    if (labels := getattr(artefacts.pooler, "labels", None)) is not None:
        labels.write(artefacts.staging.root / (plan.name + names.TOKENIZE_SUFFIX) / "1")
    folders.write_net(plan, artefacts.net_folder(plan).parent, artefacts.inputs, artefacts.nets)
    folders.write_postprocess(plan, artefacts.staging, artefacts.tokenizer)
    return artefacts


def compare_answers(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Compare each net with the checkpoint, and search for another one if one in int8 is refused.

    Raises VerificationFailed, with the figures, if a net differs too much.
    """
    for device in plan.built:
        artefacts = checked(plan, artefacts, device, compare)
    return replace(artefacts, graph=artefacts.graph if plan.verify_data else None)


def measure_on_data(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Measure the task's metric on the user's data, for torch and for each net."""
    artefacts = answer_data_in_torch(plan, artefacts)
    for device in plan.built:
        artefacts = checked(plan, artefacts, device, measure)
    return artefacts


def seal_net(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write the manifest of the nets that are published."""
    variants = {VARIANTS: {device: net.variant.name for device, net in artefacts.nets.items()}}
    sealed = replace(artefacts, choices={**artefacts.choices, **variants})
    return seal(artefacts.published(plan), sealed, next(iter(artefacts.nets.values())).path)


STEPS: tuple[Step[EncoderPlan, EncoderArtefacts], ...] = (
    Step("Loading the checkpoint", load),
    Step("Compiling the tokenizer", compile_tokenizer),
    Step("Building the graph", build),
    Step("Writing ONNX files", write_files),
    Step("Proving the tokenizer", prove_tokenizer),
    Step("Timing CPU runtimes", choose_nets),
    Step("Writing model folders", write_folders),
    Step("Running the checkpoint", answer_in_torch, gate=True),
    Step("Comparing answers", compare_answers, gate=True),
    Step("Measuring on your data", measure_on_data, gate=True, labelled=True),
    Step("Hashing files", seal_net),
    Step("Checking the lint rules", lint_staged),
    Step("Publishing", publish_folders),
)
