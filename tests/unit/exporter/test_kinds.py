"""The kind of an encoder: recorded by its export, and derived for models of earlier versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from hfx import names
from hfx.errors import UsageError
from hfx.exporter.encoder import steps
from hfx.exporter.encoder.kinds import ALIASES, usual_kind
from hfx.exporter.encoder.nets import EncoderArtefacts
from hfx.exporter.encoder.plan import EncoderPlan, make_encoder_plan
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
from hfx.exporter.steps import Step, publish_folders
from hfx.exporter.variants.variant import Net
from hfx.exporter.verify import REFERENCE_FILE, Recorded, open_published, write_recorded
from hfx.local import read_config
from hfx.local.models import published_metadata
from hfx.metadata import ModelMetadata
from hfx.names import GENERATION_TASKS, Kind, Task
from hfx.tasks import is_late, kind_of
from hfx.tasks.kinds import USUAL
from tests import zoo
from tests.rigs.checkpoints.colbert_models import write_stanford
from tests.rigs.checkpoints.decoder_rankers import CHATML, Ranker, write_classifier, write_decoder, write_logit_ranker
from tests.rigs.checkpoints.published import GENERATORS, export_checkpoint
from tests.rigs.checkpoints.sentence_models import (
    Recipe,
    pooling,
    splade,
    static_embedding,
    write_cross_encoder,
    write_embedder,
    write_router,
    write_sparse_encoder,
)
from tests.rigs.files import onnx_toys
from tests.zoo.recipes import BY_NAME, SHARED

pytestmark = pytest.mark.slow

PROMPTS = {"prompts": {"query": "the dog: "}}
MEAN, SPLADE = Recipe((pooling("mean"),), PROMPTS), Recipe((splade(),))
# Kind -> a function that writes a checkpoint of it in a folder, or below it.
WRITERS: dict[str, tuple[Kind, Callable[[Path], Any], dict[str, Any]]] = {
    "embedder": (Kind.EMBEDDER, partial(write_embedder, recipe=MEAN), {}),
    "token-vectors": (Kind.TOKEN_VECTORS, partial(write_embedder, recipe=MEAN), {"token_vectors": True}),
    "sparse": (Kind.SPARSE, partial(write_sparse_encoder, recipe=SPLADE), {}),
    "router": (Kind.SPARSE, partial(write_router, recipe=SPLADE), {}),
    "colbert": (Kind.LATE, lambda folder: write_stanford(folder / "model"), {}),
    "static": (Kind.STATIC, lambda folder: static_embedding(folder / "model"), {}),
    "cross-encoder": (Kind.CROSS_ENCODER, partial(write_cross_encoder, recipe=Recipe(())), {}),
    "pair-classifier": (Kind.PAIR_CLASSIFIER, partial(write_cross_encoder, recipe=Recipe(()), labels=3), {}),
    "answer-classifier": (
        Kind.ANSWER_CLASSIFIER,
        lambda folder: write_decoder(folder / "model", Ranker(template=CHATML)),
        {"task": Task.TEXT_CLASSIFICATION, "answer": ("yes", "no")},
    ),
    "decoder": (Kind.CROSS_ENCODER, partial(write_classifier, ranker=Ranker()), {}),
    "judge": (Kind.JUDGE, partial(write_logit_ranker, ranker=Ranker()), {}),
}


def write_empty_net(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write a graph without nodes where an export writes the checkpoint's."""
    artefacts.staging.folder(plan.name + names.NET_SUFFIX)
    artefacts.net_folder(plan).mkdir()
    nets = {
        device: Net(variant, artefacts.net_folder(plan) / variant.file)
        for device, [variant, *_] in plan.variants.items()
    }
    for net in nets.values():
        onnx.save(onnx_toys.graph([], [], []), net.path)
    return replace(artefacts, inputs=(names.INPUT_IDS, names.ATTENTION_MASK), nets=nets)


def record_no_answers(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    write_recorded(Recorded((), ()), artefacts.staging.root / plan.name / REFERENCE_FILE)
    return artefacts


# An export without what takes long, none of which knows of kinds: tracing, and comparing answers.
STEPS = [
    Step(run.__name__, run)
    for run in (
        steps.load,
        write_empty_net,
        steps.write_folders,
        record_no_answers,
        steps.seal_net,
        publish_folders,
    )
]

# The checkpoints that read the labels of a request.
LABELLED = {"labelled-spans-deberta": Kind.SPANS, "labelled-topics-deberta": Kind.LABELS}


def plan_of(folder: Path, **options: Any) -> EncoderPlan:
    return make_encoder_plan(open_checkpoint(str(folder)), ExportOptions(**options))


@pytest.mark.parametrize("name", WRITERS)
def test_the_kind_is_recorded_and_derived_for_models_of_before(name: str, tmp_path: Path) -> None:
    kind, write, options = WRITERS[name]
    write(tmp_path)
    assert plan_of(tmp_path / "model", **options).kind.name is kind
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", STEPS, name="model", **options)
    assert manifest.choices["kind"] == kind
    parameters = read_config(tmp_path / "repository" / "model" / "config.pbtxt")["parameters"]
    assert parameters["kind"]["string_value"] == kind
    metadata = published_metadata(tmp_path / "repository", "model")
    assert kind_of(metadata, manifest.task) is kind
    assert is_late(metadata) is (kind is Kind.LATE)
    assert open_published(tmp_path / "repository", "model").kind is kind
    unrecorded = {key: value for key, value in manifest.choices.items() if key != "kind"}
    # Static vectors are those of any embedder; one with prompts and token vectors looked like a ColBERT.
    before = {"static": Kind.EMBEDDER, "token-vectors": Kind.LATE, "answer-classifier": Kind.CLASSIFIER}
    derived = before.get(name, kind)
    assert kind_of(replace(metadata, kind=""), manifest.task, unrecorded) is derived


@pytest.mark.parametrize("recipe", [name for name in SHARED if BY_NAME[name].task not in GENERATORS])
def test_the_kind_of_a_zoo_checkpoint_is_that_of_its_task(recipe: str) -> None:
    plan = plan_of(zoo.checkpoint(recipe))
    assert plan.kind.name is LABELLED.get(recipe, USUAL[plan.kind.task])
    assert plan.describe()["kind"] == plan.kind.name


def test_the_refusal_of_an_unknown_task_names_every_name_that_is_taken() -> None:
    with pytest.raises(UsageError, match="sentiment") as refused:
        usual_kind("sentiment")
    assert {*Task, *ALIASES} <= {*re.findall(r"[\w-]+", refused.value.fix)}


def test_generators_have_no_kind_and_unknown_kinds_fall_back() -> None:
    plain = ModelMetadata("model", (), ())
    assert {kind_of(plain, task) for task in GENERATION_TASKS} == {None}
    assert {kind_of(plain, task) for task in USUAL} == {*USUAL.values()}
    assert kind_of(replace(plain, kind="of-a-later-version"), Task.TEXT_CLASSIFICATION) is Kind.CLASSIFIER
