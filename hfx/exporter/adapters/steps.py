"""The export of an adapter: the steps of an encoder, of which some reuse what a published one has."""

from __future__ import annotations

import filecmp
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from hfx import names, native
from hfx.errors import VerificationFailed
from hfx.exporter.adapters.adapted import Adapted
from hfx.exporter.adapters.graph import ADAPTER, ADAPTERS
from hfx.exporter.adapters.part import MIXED_ADAPTERS, MIXED_TEXTS, RECORD, AdapterPart, Donor, link_to_donor
from hfx.exporter.adapters.pool import Matrix
from hfx.exporter.encoder import steps
from hfx.exporter.encoder.nets import EncoderArtefacts
from hfx.exporter.encoder.one_hop import Compiled, known
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.model_files import write_tokenizer_json
from hfx.local import Tensors
from hfx.python_backends.onnxruntime.config import ADAPTER_FILE, ERRORS, SHARED_NET, SKIPS_PADDING


def part_of(plan: EncoderPlan) -> AdapterPart:
    """Return the adapter that the plan exports."""
    [variant] = plan.variants["cpu"]
    assert isinstance(variant, Adapted)
    return variant.part


def compile_tokenizer(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Take the donor's compiled tokenizer if it is the same tokenizer; else compile and prove it."""
    donor = part_of(plan).donor
    if donor and (compiled := _compiled_tokenizer(donor, artefacts.tokenizer)):
        return replace(artefacts, proof=known(compiled))
    return steps.compile_tokenizer(plan, artefacts)


def _compiled_tokenizer(donor: Donor, tokenizer: Any) -> Compiled | None:
    """Return the compiled tokenizer of `donor`; None if `tokenizer` is another one."""
    folder = donor.repository / (donor.manifest.name + names.TOKENIZE_SUFFIX) / "1"
    with tempfile.TemporaryDirectory(prefix="hfx-tokenizer-") as temporary:
        file = Path(temporary) / "tokenizer.json"
        write_tokenizer_json(tokenizer, file)
        if not filecmp.cmp(file, folder / file.name, shallow=False):
            return None
    stated: Any = donor.manifest.choices["tokenizer"]
    if not stated["compiled"]:
        return Compiled(why_not=stated["reason"])
    return Compiled((folder / names.COMPILED_TOKENIZER).read_bytes(), stated["texts_compared"])


def build(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Build the graph of the backbone, or read the donor's."""
    part = part_of(plan)
    if part.donor is None:
        with part.on_backbone(artefacts.model):
            return steps.build(plan, artefacts, part.rooms.ranks)
    [variant] = plan.variants["cpu"]
    graph = onnx.load(part.donor.net / variant.file, load_external_data=False)
    inputs = (each.name for each in graph.graph.input)
    tokens = tuple(name for name in inputs if name not in (names.ITEM_SHAPE, ADAPTER, ADAPTERS))
    return replace(artefacts, graph=graph, inputs=tokens)


def compare_answers(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Compare the net with the checkpoint, and batches that mix adapters with each adapter alone.

    Raises VerificationFailed if an answer differs too much, or depends in any bit on the other adapters in its batch.
    """
    artefacts = steps.compare_answers(plan, artefacts)
    part, reference = part_of(plan), artefacts.reference
    assert reference is not None
    record = artefacts.choices[RECORD]
    alike = [each for each in part.published if each.record[SHARED_NET] == record[SHARED_NET]][: MIXED_ADAPTERS - 1]
    slots = np.stack([_slot(artefacts.net_folder(plan)), *(_slot(each.net) for each in alike)])
    session: Any = _session(plan, artefacts)
    texts = [each for each in reference.encoded if each[names.INPUT_IDS][..., 0].size == 1][:MIXED_TEXTS]  # no windows
    if not record[SKIPS_PADDING]:  # padding would be computed, and may change the last bit
        widths = [each[names.INPUT_IDS].shape[-1] for each in texts]
        most = max(set(widths), key=widths.count)
        texts = [each for each, width in zip(texts, widths, strict=True) if width == most]
    order = np.arange(len(texts), dtype=np.int32) % len(slots)
    feed = _feed(texts, artefacts.inputs)
    mixed = session.run(None, feed | {ADAPTER: order, ADAPTERS: slots})[0]
    window = (0,) * (plan.kind.item_rank - 1)
    for row, (text, at) in enumerate(zip(texts, order, strict=True)):
        alone = session.run(None, _feed([text], artefacts.inputs) | {ADAPTERS: slots[at : at + 1]})[0][0, *window]
        if mixed[row, *window][: len(alone)].tobytes() != alone.tobytes():  # values of tokens have padding behind them
            raise VerificationFailed(
                f"An answer of {plan.name} depends on the other adapters in its batch (text {row}).",
                "Please report this.",
            )
    return replace(artefacts, parity={**artefacts.parity, "mixed": {"adapters": len(slots), "texts": len(texts)}})


def _slot(net: Path) -> Matrix:
    return np.fromfile(net / ADAPTER_FILE, "<f4")


def _session(plan: EncoderPlan, artefacts: EncoderArtefacts) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = plan.threads, ERRORS
    options.register_custom_ops_library(str(native.library()))
    return onnxruntime.InferenceSession(str(artefacts.nets["cpu"].path), options)


def _feed(texts: list[Tensors] | Any, inputs: tuple[str, ...]) -> dict[str, Any]:
    """Return the inputs of the net for rows of any shapes."""
    flat = {name: np.concatenate([each[name].reshape(-1) for each in texts]).astype(np.int32) for name in inputs}
    return flat | {names.ITEM_SHAPE: np.array([each[names.INPUT_IDS].shape[1:] for each in texts], np.int32)}


def seal(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Link the files that the donor has, and write the manifest."""
    if donor := part_of(plan).donor:
        link_to_donor(donor, artefacts.staging.root, plan.name)
    return steps.seal_net(plan, artefacts)


OWN: dict[Any, Any] = {
    steps.compile_tokenizer: compile_tokenizer,
    steps.build: build,
    steps.compare_answers: compare_answers,
    steps.seal_net: seal,
}
STEPS = tuple(replace(step, run=OWN.get(step.run, step.run)) for step in steps.STEPS if not step.labelled)
