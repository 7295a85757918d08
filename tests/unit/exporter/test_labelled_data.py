"""Labelled data of `--verify-data` and `hfx verify --data`: targets that no answer can equal are refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.cli.export_summary import summary
from hfx.exporter.encoder.kinds import BY_KIND, usual_kind
from hfx.exporter.encoder.kinds.cross_encoder import PairClassifier
from hfx.exporter.labelled_data import read_data
from hfx.names import Kind, Task
from hfx.rows import RowError
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.checkpoints.published import export_checkpoint

CONFIG = {"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}}
TAGS = {"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}}
HEADERS = {
    Task.TEXT_CLASSIFICATION: ("text", "label"),
    Task.TOKEN_CLASSIFICATION: ("text", "entities"),
    Task.ZERO_SHOT_CLASSIFICATION: ("text", "candidate_labels", "label"),
    Task.TEXT_RANKING: ("query", "text", "score"),
    Task.FEATURE_EXTRACTION: ("text1", "text2", "similarity"),
}


def write(folder: Path, header: tuple[str, ...], *rows: tuple[str, ...]) -> Path:
    path = folder / "dev.csv"
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([header, *rows])
    return path


@pytest.mark.parametrize(
    ("task", "rows", "config", "words"),
    [
        (
            Task.TEXT_CLASSIFICATION,
            [("a", "NEGATIVE"), ("b", "positive")],
            CONFIG,
            ("line 3", "'positive'", "the file's labels are 'NEGATIVE', 'positive'", "'NEGATIVE', 'POSITIVE'"),
        ),
        (Task.TEXT_CLASSIFICATION, [("a", "2")], CONFIG, ("line 2", "'2'")),
        (Task.TEXT_CLASSIFICATION, [("a", "")], CONFIG, ("line 2", "''")),
        (Task.TEXT_CLASSIFICATION, [("a", "²")], CONFIG, ("line 2", "'²'")),
        (Task.TOKEN_CLASSIFICATION, [("a", '[{"entity": "O", "start": 0, "end": 1}]')], TAGS, ("'O'", "'PER'")),
        (Task.TOKEN_CLASSIFICATION, [("a", "[]"), ("a", "PER")], TAGS, ("line 3", "JSON list of entities")),
        (Task.TOKEN_CLASSIFICATION, [("a", '[{"entity": "PER"}]')], TAGS, ("line 2", "JSON list of entities")),
        (Task.ZERO_SHOT_CLASSIFICATION, [("a", "x|y", "z")], {}, ("line 2", "'z'", "'x', 'y'")),
        (Task.TEXT_RANKING, [("a", "b", "much")], {}, ("line 2", "'much'", "a number")),
        (Task.TEXT_RANKING, [("a", "b", "-inf")], {}, ("line 2", "'-inf'", "a number")),
        (Task.FEATURE_EXTRACTION, [("a", "b", "1"), ("a", "b", "")], {}, ("line 3", "a number")),
    ],
)
def test_targets_that_no_answer_equals_are_refused_with_their_line(
    tmp_path: Path, task: Task, rows: list[tuple[str, ...]], config: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(RowError) as error:
        read_data(write(tmp_path, HEADERS[task], *rows), usual_kind(task), config)
    assert all(word in error.value.message for word in words), error.value.message
    assert error.value.fix


def test_entities_that_a_request_names_are_among_the_candidates_of_their_row(tmp_path: Path) -> None:
    entities = [f'[{{"entity": "{label}", "start": 0, "end": 1}}]' for label in "xz"]
    rows = [("a", "x|y", each) for each in entities]
    kind = BY_KIND[Kind.SPANS].published((), has_prompts=False)
    header = ("text", "candidate_labels", "entities")
    data = read_data(write(tmp_path, header, rows[0]), kind, {})
    assert data.requests == ({"text_input": "a", "candidate_labels": ["x", "y"]},) and data.targets == (entities[0],)
    with pytest.raises(RowError, match=r"'z'.* the row's candidates are 'x', 'y'"):
        read_data(write(tmp_path, header, *rows), kind, {})


def test_labels_are_named_or_numbered(tmp_path: Path) -> None:
    path = write(tmp_path, ("text", "label"), ("a", "POSITIVE"), ("b", "0"))
    assert read_data(path, usual_kind(Task.TEXT_CLASSIFICATION), CONFIG).targets == ("POSITIVE", "NEGATIVE")
    spans = '[{"entity": "PER", "start": 0, "end": 1}, {"entity": "B-PER", "start": 2, "end": 3}]'
    path = write(tmp_path, ("text", "entities"), ("a b", spans), ("b", "[]"))
    assert read_data(path, usual_kind(Task.TOKEN_CLASSIFICATION), TAGS).targets == (spans, "[]")
    ranks = PairClassifier(labels=("no", "yes"))
    path = write(tmp_path, ("query", "text", "label"), ("a", "b", "yes"), ("a", "b", "1"))
    assert read_data(path, ranks, {}).targets == ("yes", "yes")


def test_a_message_of_many_labels_is_short(tmp_path: Path) -> None:
    config = {"id2label": {str(number): f"label {number}" for number in range(1000)}}
    path = write(tmp_path, ("text", "label"), ("a", "x" * 10_000))
    with pytest.raises(RowError, match="and 990 more") as error:
        read_data(path, usual_kind(Task.TEXT_CLASSIFICATION), config)
    assert len(error.value.message) < 600


def test_foreign_labels_end_an_export_before_any_work_and_a_verification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "tiny"
    tiny_checkpoints.save(checkpoint, tiny_checkpoints.bert(id2label={0: "bad", 1: "good"}))
    foreign = write(tmp_path, ("text", "label"), ("the cat sat", "good"), ("the dog ran", "great"))
    place = ["--repository", str(tmp_path / "repository")]
    assert main(["export", str(checkpoint), "--name", "m", "--verify-data", str(foreign), *place]) == 2
    printed = capsys.readouterr().err
    assert "line 3" in printed and "'great'" in printed and "'bad', 'good'" in printed
    assert "Building the graph" not in printed and not (tmp_path / "repository/m").exists()
    export_checkpoint(checkpoint, tmp_path / "repository", name="m", max_length=16, max_batch_size=4)
    assert main(["verify", "m", "--data", str(foreign), *place]) == 2
    assert "'great'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answers", "targets", "error"),
    [
        ((("good", 0.9), ("good", 0.9), ("bad", 0.9)), ("good", "bad", "good"), 0.9 - 1 / 3),  # one of three is right
        ((("good", 0.95), ("bad", 0.55), ("bad", 1.0)), ("good", "bad", "bad"), (0.05 + 0.45) / 3),
        ((("good", 7.5), ("good", 1.0), ("good", -2.0)), ("good", "good", "good"), None),
    ],
)
def test_calibration_is_how_far_scores_are_from_the_shares_of_right_answers(
    answers: tuple[tuple[str, float], ...], targets: tuple[str, ...], error: float | None
) -> None:
    kind = usual_kind(Task.TEXT_CLASSIFICATION)
    found = kind.calibration_error([{"label": [label], "score": [score]} for label, score in answers], targets)
    assert found == (None if error is None else pytest.approx(error))


@pytest.mark.parametrize(
    ("label", "score", "same"), [("good", 0.51, True), ("good", 0.49, False), ("bad", 0.6, False), ("good", 1.0, True)]
)
def test_a_decision_is_a_label_and_the_side_of_the_threshold(label: str, score: float, same: bool) -> None:
    kind, reference = usual_kind(Task.TEXT_CLASSIFICATION), {"label": ["good", "bad"], "score": [0.6, 0.4]}
    assert kind.same_decision(reference, {"label": [label], "score": [score]}) is same


@pytest.mark.slow
def test_an_export_measures_decisions_and_calibration_on_the_users_data(tmp_path: Path) -> None:
    config = {"id2label": {0: "bad", 1: "good"}, "initializer_range": 0.5}
    tiny_checkpoints.save(tmp_path / "tiny", tiny_checkpoints.bert(**config))
    data = write(tmp_path, ("text", "label"), *((" ".join(["the cat", "dog"] * n), "good") for n in range(1, 20)))
    manifest = export_checkpoint(tmp_path / "tiny", tmp_path / "repository", name="m", verify_data=(data,))
    stated: Any = manifest.parity
    figures = stated["data"][data.name]
    assert figures["other_decisions"] == {"cpu": 0}
    errors = figures["calibration_error"]
    assert errors["cpu"] == pytest.approx(errors["torch"], abs=1e-5) and 0 < errors["torch"] < 1
    assert any("calibration error: the checkpoint 0." in line for line in summary(manifest, tmp_path))
