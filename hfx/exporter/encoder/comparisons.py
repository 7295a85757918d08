"""Compare the staged files of an encoder with the checkpoint in torch, on the gate's texts and on the user's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hfx.errors import CheckpointUnsupported, RequestRefused
from hfx.exporter.encoder import gate
from hfx.exporter.encoder.calibration import divided
from hfx.exporter.encoder.nets import EncoderArtefacts
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.tokenizer import with_embeddings
from hfx.exporter.verify import (
    CALIBRATION,
    OTHER_DECISIONS,
    REFERENCE_FILE,
    UNCALIBRATED,
    Recorded,
    check_drop,
    write_recorded,
)
from hfx.local import Device, Request
from hfx.local.encoder import LocalModel
from hfx.python_backends.tasks import TASKS


def answer_in_torch(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Get the checkpoint's own answers to the gate's texts, from the tokens of the staged tokenizer."""
    texts = artefacts.texts
    try:
        given, made = (_requests(plan, artefacts, each) for each in (texts.given, texts.made))
        model, reference = _reference(plan, artefacts, [*given, *made])
    except RequestRefused as refusal:
        raise CheckpointUnsupported(
            f"{plan.checkpoint.id} can't take a text that every export is compared by. {refusal.message}",
            "Where it reads too few tokens, a larger model_max_length in tokenizer_config.json may help.",
        ) from refusal
    reference = replace(reference, made=len(made))
    checked = gate.check_tokens(model, plan.kind, artefacts.tokenizer, reference)
    recorded = Recorded(tuple(map(dict, reference.requests)), tuple(reference.answers))
    write_recorded(recorded, artefacts.staging.root / plan.name / REFERENCE_FILE)
    return replace(artefacts, reference=reference, parity={"tokenized_alike": checked})


def _requests(plan: EncoderPlan, artefacts: EncoderArtefacts, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the requests with `texts` that the model can answer."""
    samples = plan.kind.samples(with_embeddings(plan.checkpoint, artefacts.tokenizer, texts))
    samples = [sample | plan.options_of(i) for i, sample in enumerate(samples)]
    return [sample for sample in samples if _has_tokens(plan, artefacts, sample)]


def _has_tokens(plan: EncoderPlan, artefacts: EncoderArtefacts, request: Request) -> bool:
    """Return whether a request has any tokens and, for fill-mask, a mask that is not truncated.

    Other requests would be refused, so the caller leaves them out.

    If the tokenizer adds no special tokens, some texts have no tokens. A question or a label always has some.
    """
    if plan.kind.takes_empty or TASKS[plan.kind.task].nested:
        return True
    [ids, *_] = plan.kind.expected_ids(artefacts.tokenizer, dict(request), plan.max_length)
    return artefacts.tokenizer.mask_token_id in ids if TASKS[plan.kind.task].of_masks else len(ids) > 0


def compare(plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device) -> EncoderArtefacts:
    """Compare the net for `device` with the checkpoint.

    Raises VerificationFailed, with the figures, if it differs too much.
    """
    assert artefacts.reference is not None
    net = artefacts.nets[device]
    every = gate.Gate(plan.kind, artefacts.reference, plan.max_drop, bool(plan.verify_data))
    figures = net.variant.compare(net, net.variant.open(artefacts.staging.root, plan.name), every)
    return replace(artefacts, parity={**artefacts.parity, device: figures})


def measure(plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device) -> EncoderArtefacts:
    """Measure the task's metric on the user's data, for torch and for the net for `device`, unless it was done before.

    Raises VerificationFailed if the metric falls by more than --max-drop.
    """
    results: dict[str, Any] = dict(artefacts.parity.get("data", {}))
    if any(device in figures for figures in results.values()):
        return artefacts
    model = artefacts.nets[device].variant.open(artefacts.staging.root, plan.name)
    for file, (data, reference) in artefacts.answered.items():
        expected, metric = data.measured(plan.kind, reference.answers), data.metric(plan.kind)
        outputs = model.run(reference.encoded)
        answers = reference.answers_of(model, outputs)
        value = data.measured(plan.kind, answers)
        check_drop(plan, metric, file, device, expected, value)
        figures = results.get(file) or {"metric": metric, "rows": len(data.targets), "torch": expected}
        pairs = zip(reference.answers, answers, strict=True)
        others = sum(not plan.kind.same_decision(expected, found) for expected, found in pairs)
        more = {OTHER_DECISIONS: {**figures.get(OTHER_DECISIONS, {}), device: others}}
        if (error := plan.kind.calibration_error(answers, data.targets)) is not None:
            torch = plan.kind.calibration_error(reference.answers, data.targets)
            more[CALIBRATION] = {**figures.get(CALIBRATION, {"torch": torch}), device: error}
            if (heat := artefacts.temperature) is not None:
                for name, raw in (("torch", reference.outputs), (device, outputs)):
                    before = reference.answers_of(model, divided(raw, 1 / heat))
                    uncalibrated = plan.kind.calibration_error(before, data.targets)
                    more.setdefault(UNCALIBRATED, dict(figures.get(UNCALIBRATED, {})))[name] = uncalibrated
        results[file] = {**figures, device: value, **more}
    return replace(artefacts, parity={**artefacts.parity, "data": results})


def answer_data_in_torch(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Get the checkpoint's own answers to the user's data, if that was not done before."""
    if artefacts.answered:
        return artefacts
    answered = {
        file: (data, _reference(plan, artefacts, data.requests)[1]) for file, data in artefacts.labelled.items()
    }
    return replace(artefacts, answered=answered)


def _reference(
    plan: EncoderPlan, artefacts: EncoderArtefacts, requests: Sequence[Request]
) -> tuple[LocalModel, gate.Reference]:
    """Return the model that tokenizes `requests`, on the CPU, and the checkpoint's answers."""
    model = LocalModel.open(artefacts.staging.root, plan.name, next(iter(plan.built)), "CPU")
    heat = artefacts.temperature
    change = list if heat is None else partial(divided, by=heat)
    reference = gate.make_reference(model, requests, artefacts.model, artefacts.inputs, artefacts.pooler, change)
    return model, reference
