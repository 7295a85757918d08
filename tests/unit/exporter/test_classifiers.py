"""Whole exports of classifiers: decoders, T5, and GTE as it was published, with code of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.errors import CheckpointUnsupported
from hfx.exporter.config_file import as_native
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from tests.attacks.damage import DROPPED, edit_json, edit_tensors
from tests.rigs.checkpoints import tiny_checkpoints, tiny_encoders
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.machine.tiers import since_transformers

CLASSIFIER = "AutoModelForSequenceClassification"
TEXTS = ["the cat sat in paris", "a", "the good dog ran in the bad film . the cats running in paris ?"]
GTE = {
    "model_type": "new",
    "position_embedding_type": "rope",
    "rope_theta": 20_000,
    "rope_scaling": {"type": "ntk", "factor": 8.0},
    "hidden_size": 32,
    "num_attention_heads": 4,
    "architectures": ["NewForSequenceClassification"],
    "auto_map": {CLASSIFIER: "org/new-impl--modeling.NewForSequenceClassification"},
}


def in_torch(model: Any, text: str) -> Any:
    """Return the softmax of the scores of one text, alone."""
    ids = tiny_checkpoints.tokenizer()(text, return_tensors="pt")
    with torch.no_grad():
        return model(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]).logits.softmax(-1)[0].numpy()


@pytest.mark.slow
@pytest.mark.usefixtures("least_texts")
@pytest.mark.parametrize(
    ("model_type", "changes"),
    [("gpt2", {"pad_token_id": None, "n_positions": 40}), ("gpt2", {}), ("opt", {}), ("umt5", {"eos_token_id": 3})],
)
def test_a_classifier_of_a_decoder_is_exported(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_encoders.build(model_type, CLASSIFIER, **{"pad_token_id": 0, "eos_token_id": 3} | changes)
    folder = tiny_checkpoints.save(tmp_path / "tiny", model)
    plan = make_plan(open_checkpoint(str(folder)), ExportOptions())
    assert isinstance(plan, EncoderPlan)
    assert plan.max_length == changes.get("n_positions", tiny_checkpoints.POSITIONS)
    export_checkpoint(folder, tmp_path / "repository")
    answers_like(model, tmp_path / "repository")


def answers_like(model: Any, repository: Path) -> None:
    """Compare all scores of the published model "tiny" with those of `model`."""
    served = LocalModel.open(repository, "tiny")
    for answer, text in zip(served.infer_all([{"text_input": text, "top_k": 3} for text in TEXTS]), TEXTS, strict=True):
        scores = dict(zip(answer["label"], answer["score"], strict=True))
        found = [scores[f"LABEL_{label}"] for label in range(3)]
        np.testing.assert_allclose(found, in_torch(model, text), atol=2e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("least_texts")
@since_transformers(5, 20)
def test_the_published_gte_is_read_by_the_class_of_transformers(tmp_path: Path) -> None:
    """transformers saves the published names of tensors, but for their prefix; the map to code is never followed."""
    rotary = as_native(Path(), GTE)["rope_parameters"]
    model = tiny_encoders.build("gte", CLASSIFIER, pad_token_id=0, rope_parameters=rotary)
    folder = tiny_checkpoints.save(tmp_path / "tiny", model)
    edit_tensors(folder, lambda kept: {re.sub("^gte[.]", "new.", name): value for name, value in kept.items()})
    edit_json(folder / "config.json", **GTE, rope_parameters=DROPPED)
    assert open_checkpoint(str(folder)).model_type == "gte"
    export_checkpoint(folder, tmp_path / "repository")
    answers_like(model, tmp_path / "repository")


@since_transformers(5, 20)
def test_the_frequencies_of_gte_are_those_of_a_fixed_ntk() -> None:
    rotary = as_native(Path(), GTE)["rope_parameters"]
    found = tiny_encoders.build("gte", CLASSIFIER, rope_parameters=rotary).gte.rotary_emb.inv_freq
    expected = [(20_000 * 8) ** (-index / 8) / 8 ** (2 / 8) for index in range(0, 8, 2)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position_embedding_type", "absolute"),
        ("layer_norm_type", "rms_norm"),
        ("logn_attention_scale", True),
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}),
        ("rope_scaling", {"type": "ntk", "factor": 2.0, "mixed_b": 0.5}),
        ("rope_scaling", {"type": "ntk", "factor": "2"}),
        ("rope_scaling", {"type": "ntk", "factor": 1e300}),
        ("rope_scaling", "ntk"),
        ("rope_theta", 0),
        ("model_type", "xlm-roberta-flash"),
    ],
)
def test_what_the_class_of_transformers_does_not_compute_is_refused(field: str, value: Any) -> None:
    with pytest.raises(CheckpointUnsupported, match=field):
        as_native(Path("config.json"), GTE | {field: value})
