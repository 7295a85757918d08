"""The gate refuses each fault of a graph that takes an answer to any texts of the vocabulary beyond its limits."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from hfx.errors import VerificationFailed
from hfx.exporter import gate_texts
from hfx.exporter.encoder import gate
from hfx.exporter.encoder.comparisons import compare
from hfx.exporter.encoder.nets import EncoderArtefacts
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.encoder.steps import STEPS
from hfx.exporter.steps import Step
from hfx.names import Task
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.files.mutants import faults
from tests.rigs.machine.tiers import few
from tests.unit.exporter.test_kinds import WRITERS

pytestmark = pytest.mark.slow

FRESH = 200  # texts that the gate has not seen, twice
HEADS = {
    Task.TEXT_CLASSIFICATION: "ForSequenceClassification",
    Task.TOKEN_CLASSIFICATION: "ForTokenClassification",
    Task.QUESTION_ANSWERING: "ForQuestionAnswering",
    Task.FILL_MASK: "ForMaskedLM",
}


def write_bert(folder: Path, head: str) -> None:
    model = tiny_checkpoints.bert(head, initializer_range=0.3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)  # biases are 0 at the start
    tiny_checkpoints.save(folder / "model", model)


CHECKPOINTS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    **{str(task): (partial(write_bert, head=head), {"task": task}) for task, head in HEADS.items()},
    **{name: (write, options) for name, (_, write, options) in WRITERS.items()},
}


def fresh_reference(plan: EncoderPlan, artefacts: EncoderArtefacts, seed: int) -> gate.Reference:
    """Return the checkpoint's answers to texts of random tokens."""
    tokenizer, chance = artefacts.tokenizer, random.Random(seed)
    ids = gate_texts.chosen_ids(tokenizer.get_vocab(), frozenset(tokenizer.all_special_ids))
    texts = [tokenizer.decode(chance.choices(ids, k=1 + number % 40)) for number in range(FRESH)]
    samples = [sample | plan.options_of(at) for at, sample in enumerate(plan.kind.samples(texts))]
    model = next(iter(artefacts.nets.values())).variant.open(artefacts.staging.root, plan.name)
    return gate.make_reference(model, samples, artefacts.model, artefacts.inputs, artefacts.pooler)


def refusals(plan: EncoderPlan, artefacts: EncoderArtefacts) -> dict[str, tuple[bool, bool]]:
    """Return for each fault whether it takes answers to fresh texts beyond the limits, and whether the gate refuses."""
    [(device, net)] = artefacts.nets.items()
    whole, fresh = net.path.read_bytes(), [fresh_reference(plan, artefacts, seed) for seed in (7, 8)]
    tokenizer = artefacts.tokenizer
    ids = gate_texts.chosen_ids(tokenizer.get_vocab(), frozenset(tokenizer.all_special_ids))[:6]
    table = {}
    for name in dict(faults(onnx.load(net.path), ids)):
        model = onnx.load(net.path)
        dict(faults(model, ids))[name]()
        changed = net.path.with_name("changed.onnx")
        onnx.save(model, changed)
        changed.replace(net.path)
        limits = gate.limits(net.variant.accuracy, None)
        opened = net.variant.open(artefacts.staging.root, plan.name)
        # A fault at the very limit is beyond it on one set of texts, and within it on another.
        moves = all(is_refused(gate.judge, "", gate.measure(opened, plan.kind, each), limits) for each in fresh)
        table[name] = (moves, is_refused(compare, plan, artefacts, device))
        changed.write_bytes(whole)
        changed.replace(net.path)
    assert not is_refused(compare, plan, artefacts, device)
    return table


def is_refused(check: Callable[..., object], *arguments: object) -> bool:
    try:
        check(*arguments)
    except VerificationFailed:
        return True
    return False


# In int8, the gate refuses the others of these random models without any fault, or they have no products.
IN_INT8 = ("text-classification", "token-classification", "fill-mask", "embedder", "token-vectors", "cross-encoder",
           "decoder", "judge")  # fmt: skip
CASES = [f"{name} fp32" for name in CHECKPOINTS] + [f"{name} int8" for name in IN_INT8]


@pytest.mark.parametrize(
    "case", few(CASES, "text-classification fp32", "text-classification int8", "embedder fp32", "judge fp32")
)
def test_every_fault_that_moves_an_answer_is_refused(tmp_path: Path, case: str) -> None:
    name, precision = case.split()
    write, options = CHECKPOINTS[name]
    write(tmp_path)
    found: dict[str, tuple[bool, bool]] = {}

    def try_faults(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
        found.update(refusals(plan, artefacts))
        return artefacts

    at = [step.title for step in STEPS].index("Comparing answers")
    steps = [*STEPS[:at], Step("Trying faults", try_faults), *STEPS[at:]]
    export_checkpoint(
        tmp_path / "model", tmp_path / "repository", steps, name="model", precision=precision,
        cpu_runtime="onnxruntime", **options
    )  # fmt: skip
    missed = [fault for fault, (moves, refused) in found.items() if moves and not refused]
    assert sum(moves for moves, _ in found.values()) >= (1 if name == "static" else 4)
    assert missed == []
