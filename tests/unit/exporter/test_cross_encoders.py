"""Cross-encoders saved by sentence-transformers score like its predict after an export."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_answers import scores
from tests.rigs.checkpoints.sentence_models import (
    HIDDEN,
    TEXTS,
    Recipe,
    dense,
    layer_norm,
    normalize,
    pooling,
    write_cross_encoder,
)
from tests.rigs.machine.tiers import few

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

SCORES = {"module_output_name": "scores"}
IDENTITY = {"activation_fn": torch.nn.Identity()}
PROMPTS = {"prompts": {"query": "the dog: ", "odd": "a [SEP] fil", "long": "a " * 70}}
RECIPES = {
    "plain": Recipe(()),
    "identity": Recipe((), IDENTITY),
    "short": Recipe((), {"max_length": 20}),
    "prompts": Recipe((), PROMPTS),
    "default-prompt": Recipe((), PROMPTS | IDENTITY | {"default_prompt_name": "query", "max_length": 20}, cased=True),
    "pooled": Recipe((pooling("cls"), dense(HIDDEN, 1, "Identity", **SCORES))),
    "several-layers": Recipe(
        (
            pooling("mean", "max"),
            dense(2 * HIDDEN, 40, "GELU"),
            layer_norm(40),
            dense(40, 1, "Identity", bias=False, **SCORES),
        ),
        PROMPTS,
    ),
    "normalized": Recipe((pooling("lasttoken"), normalize, dense(HIDDEN, 1, "Tanh", **SCORES)), IDENTITY),
    "lower-case": Recipe(
        (pooling("mean"), dense(HIDDEN, 1, "Identity", **SCORES)), transformer={"do_lower_case": True}, cased=True
    ),
}
LABELS = {  # recipe -> its number of labels, and the activation of `predict`
    "plain": (Recipe(()), 3),
    "sigmoid": (Recipe((), {"activation_fn": torch.nn.Sigmoid(), "max_length": 20}), 2),
    "softmax": (Recipe((), {"activation_fn": torch.nn.Softmax(dim=-1), **PROMPTS}), 5),
    "pooled": (Recipe((pooling("mean", "max"), dense(2 * HIDDEN, 4, "Tanh", **SCORES)), PROMPTS), 4),
}
PAIRS = [(TEXTS[(3 * i) % 5], text) for i, text in enumerate(TEXTS)]


@pytest.mark.parametrize("name", few(RECIPES, "default-prompt", "several-layers"))
def test_scores_of_one_label_equal_those_of_predict(tmp_path: Path, name: str) -> None:
    reference = write_cross_encoder(tmp_path, RECIPES[name])
    assert export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model").task == "text-ranking"
    model = LocalModel.open(tmp_path / "repository", "model")
    choices: list[dict[str, str]] = [{}]
    if reference.prompts:
        choices += [*({"prompt_name": each} for each in reference.prompts), {"prompt": "in PARIS "}, {"prompt": ""}]
    for chosen in choices:
        expected = np.array([reference.predict([pair], **chosen)[0] for pair in PAIRS])
        assert len(set(expected.tolist())) >= 9
        found = scores(model, PAIRS, **chosen)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        assert [scores(model, [pair], **chosen)[0] for pair in PAIRS] == found
    raw = [reference.predict([pair], activation_fn=torch.nn.Identity())[0] for pair in PAIRS]
    np.testing.assert_allclose(scores(model, PAIRS, raw_scores=True), raw, rtol=1e-5, atol=1e-5)
    texts = sorted(TEXTS[:6])
    ranked = reference.rank(TEXTS[0], texts)
    found = scores(model, [(TEXTS[0], text) for text in texts])
    assert np.argsort(-np.array(found)).tolist() == [each["corpus_id"] for each in ranked]


@pytest.mark.parametrize("name", few(LABELS, "softmax", "pooled"))
def test_several_labels_have_the_scores_of_predict(tmp_path: Path, name: str) -> None:
    recipe, labels = LABELS[name]
    reference = write_cross_encoder(tmp_path, recipe, labels)
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert (manifest.task, manifest.choices["tokenizer"]["compiled"]) == ("text-ranking", False)
    assert "several labels" in manifest.choices["tokenizer"]["reason"]
    model = LocalModel.open(tmp_path / "repository", "model")
    calls: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"apply_softmax": True}, {"apply_softmax": True}),
        ({"raw_scores": True}, {"activation_fn": torch.nn.Identity()}),
        ({"raw_scores": True, "apply_softmax": True}, {"activation_fn": torch.nn.Identity(), "apply_softmax": True}),
        *(({"prompt_name": each}, {"prompt_name": each}) for each in reference.prompts or ()),
    ]
    for options, keywords in calls:
        expected = np.array([reference.predict([pair], **keywords)[0] for pair in PAIRS])
        assert expected.shape == (len(PAIRS), labels) and len(np.unique(expected.round(3), axis=0)) >= 9
        found = scores(model, PAIRS, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert [scores(model, [pair], **options)[0] for pair in PAIRS] == found


def test_int8_scores_of_several_labels_are_measured_by_the_best(tmp_path: Path) -> None:
    recipe, labels = LABELS["plain"]
    reference = write_cross_encoder(tmp_path, recipe, labels)
    best = reference.predict(PAIRS).argmax(axis=1)
    data = tmp_path / "data.csv"
    rows = [["query", "text", "label"], *([*pair, f"LABEL_{label}"] for pair, label in zip(PAIRS, best, strict=True))]
    with data.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    options: Any = {"precision": "int8", "cpu_runtime": "native", "max_drop": 0.5, "verify_data": (data,)}
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model", **options)
    figures = manifest.parity["data"]["data.csv"]
    assert (figures["metric"], figures["torch"]) == ("accuracy", 1.0) and figures["cpu"] >= 0.8
    model = LocalModel.open(tmp_path / "repository", "model")
    found = scores(model, PAIRS)
    assert [scores(model, [pair])[0] for pair in PAIRS] == found


def test_apply_softmax_is_not_offered_for_a_single_score(tmp_path: Path) -> None:
    write_cross_encoder(tmp_path, RECIPES["plain"])
    export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert "apply_softmax" not in (tmp_path / "repository/model/config.pbtxt").read_text(encoding="utf-8")
