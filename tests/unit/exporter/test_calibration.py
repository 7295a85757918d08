"""`--calibrate`: the temperature, its place in the net, and the calibration errors in the manifest."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.cli.export_summary import summary
from hfx.errors import UsageError
from hfx.exporter.encoder.calibration import HOTTEST, temperature
from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints import tiny_checkpoints, tiny_encoders
from tests.rigs.checkpoints.published import export_checkpoint

LABELS = {0: "bad", 1: "good", 2: "odd"}
TEXTS = [" ".join(["the cat sat", "a dog ran", "good film", "paris ?"][:n] * (1 + n % 3)) for n in range(1, 5)] * 8


def cross_entropy(logits: Any, right: Any, exclusive: bool, by: float) -> float:
    scaled, targets = torch.tensor(logits / by), torch.tensor(right)
    if exclusive:
        return float(torch.nn.functional.cross_entropy(scaled, targets))
    every = torch.nn.functional.one_hot(targets, scaled.shape[1]).double()
    return float(torch.nn.functional.binary_cross_entropy_with_logits(scaled, every))


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_the_temperature_gives_the_least_cross_entropy(exclusive: bool, true: float) -> None:
    chance = np.random.default_rng(0)
    logits = chance.normal(0, 3, (3000, 4))
    scores = np.exp(logits / true)
    right = np.array([chance.choice(4, p=row / row.sum()) for row in scores])
    found = temperature(logits, right, exclusive)
    least = cross_entropy(logits, right, exclusive, found)
    assert all(least <= cross_entropy(logits, right, exclusive, found * factor) for factor in (0.99, 1.01))
    if exclusive:
        assert found == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize(("right", "expected"), [([0, 1] * 20, 1 / HOTTEST), ([1, 0] * 20, HOTTEST)])
def test_rows_that_are_all_right_or_all_wrong_give_the_last_temperature(right: list[int], expected: float) -> None:
    logits = np.array([[5.0, -5.0], [-5.0, 5.0]] * 20)
    assert temperature(logits, np.array(right), True) == pytest.approx(expected, rel=1e-6)


def write(tmp_path: Path, rows: int = 32) -> Path:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(
            [("text", "label"), *((text, LABELS[i % 3]) for i, text in enumerate(TEXTS[:rows]))]
        )
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("least_texts")
@pytest.mark.parametrize(
    ("model_type", "precision", "problem"),
    [("bert", "fp32", None), ("bert", "int8", "multi_label_classification"), ("gpt2", "fp32", None)],
)
def test_scores_are_those_of_divided_logits(
    model_type: str, precision: str, problem: str | None, tmp_path: Path
) -> None:
    sizes = {"pad_token_id": 0, "eos_token_id": 3, "problem_type": problem, "id2label": LABELS}
    model = tiny_encoders.build(model_type, "AutoModelForSequenceClassification", **sizes)
    folder = tiny_checkpoints.save(tmp_path / "tiny", model)
    repository, data = tmp_path / "repository", write(tmp_path)
    manifest = export_checkpoint(folder, repository, precision=precision, max_drop=1.0, calibrate=data)
    calibrated: Any = manifest.choices["calibration"]
    heat = calibrated["temperature"]
    assert calibrated["rows"] == 32 and heat != 1.0
    served = LocalModel.open(repository, "tiny")
    for text in TEXTS[:4]:
        ids = tiny_checkpoints.tokenizer()(text, return_tensors="pt")
        with torch.no_grad():
            logits = model(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]).logits[0] / heat
        expected = (logits.sigmoid() if problem else logits.softmax(-1)).tolist()
        answer = served.infer({"text_input": text, "top_k": 3})
        scores = dict(zip(answer["label"], answer["score"], strict=True))
        tolerance = 2e-5 if precision == "fp32" else 0.05
        np.testing.assert_allclose([scores[label] for label in LABELS.values()], expected, atol=tolerance)
    stated: Any = manifest.parity
    figures = stated["data"][data.name]
    for errors in (figures["calibration_error"], figures["calibration_error_before"]):
        assert errors.keys() == {"torch", "cpu"}
        assert errors["cpu"] == pytest.approx(errors["torch"], abs=1e-4 if precision == "fp32" else 0.05)
    assert figures["calibration_error"]["torch"] != figures["calibration_error_before"]["torch"]
    assert any(f"divided by {heat:.4g}" in line for line in summary(manifest, repository))


@pytest.mark.parametrize(
    ("config", "rows", "task"),
    [
        ({"problem_type": "regression", "num_labels": 1, "id2label": {0: "bad"}}, 32, None),
        ({"id2label": LABELS}, 19, None),
        ({"id2label": LABELS}, 32, "feature-extraction"),
        ({"id2label": LABELS}, 0, None),
    ],
)
def test_what_can_not_be_calibrated_is_refused(
    config: dict[str, Any], rows: int, task: str | None, tmp_path: Path
) -> None:
    tiny_checkpoints.save(tmp_path / "tiny", tiny_checkpoints.bert(**config))
    data = write(tmp_path, rows) if rows else tmp_path / "absent.csv"
    with pytest.raises(Exception) as refused:  # noqa: PT011 (rows that don't fit the task are refused as such)
        export_checkpoint(tmp_path / "tiny", tmp_path / "repository", calibrate=data, task=task)
    assert type(refused.value).__module__.startswith("hfx.")
    assert not (tmp_path / "repository" / "tiny").exists()


def test_generators_are_not_calibrated(tmp_path: Path) -> None:
    from tests.rigs.checkpoints.decoder_rankers import Ranker, write_decoder

    write_decoder(tmp_path / "tiny", Ranker())
    with pytest.raises(UsageError, match="--calibrate"):
        export_checkpoint(tmp_path / "tiny", tmp_path / "repository", calibrate=write(tmp_path))
