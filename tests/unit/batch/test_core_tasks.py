"""The output columns of each task, cell by cell, in every format and mini-batch size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.answering import Answer
from hfx.batch.models import Repository, open_model
from hfx.batch.rows import check_columns
from hfx.errors import HfxError, UsageError
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.files.batch_jobs import Opened, output_rows, table

# The same exports as in tests/conftest.py.
MODELS = {
    "entities-int8": ("entities-bert", "auto"),
    "answers-int8": ("answers-bert", "auto"),
    "nli-int8": ("nli-bart", "onnxruntime"),
    "similar-int8": ("similar-mpnet", "onnxruntime"),
}
TEXTS = ("Ada lives in Rome.", "", "A goal for Ben in Oslo!", "A garden. " * 40)
LABELS = ["sports", "food"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=MODELS)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    repository = tmp_path_factory.mktemp("repository")
    checkpoint, runtime = MODELS[request.param]
    export_zoo(checkpoint, repository, request.param, "int8", runtime)
    with open_model(request.param, Repository(repository, threads=1)) as model:
        yield Opened(model, repository)


def cells_of(answer: Answer) -> dict[str, Any]:
    """Return the expected cells of a row, by column."""
    if "label" in answer and isinstance(answer["label"], list):
        scores = dict(zip(answer["label"], answer["score"], strict=True))
        first = {"label": answer["label"][0], "score": answer["score"][0]}
        return {**first, **{f"probability_{label}": scores[label] for label in scores}}
    return {name: value for name, value in answer.items() if name not in ("truncated_tokens", "answers")}


def alike(found: Any, expected: Any) -> bool:
    """Return whether two values are equal, floats as float32."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(alike(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    return bool(np.float32(found) == np.float32(expected)) if isinstance(expected, float) else found == expected


def test_the_columns_of_each_task_hold_what_the_model_answers(opened: Opened, tmp_path: Path) -> None:
    settings: dict[str, list[Any]] = {}
    columns, rows = ["text"], [{"text": text, "q": "Where?"} for text in TEXTS]
    requests: list[dict[str, list[Any]]] = [{"text_input": [text]} for text in TEXTS]
    if opened.model.task == "question-answering":
        columns = ["question=q", "context=text"]
        requests = [{"question": ["Where?"], "context": [text]} for text in TEXTS]
    if opened.model.task == "zero-shot-classification":
        settings = {"candidate_labels": LABELS}
    source = table(tmp_path / "a.csv", rows)
    for ending in (".jsonl", ".parquet", ".csv"):
        options: Any = {"columns": columns, "settings": settings, "file_name": f"out{ending}"}
        whole = opened.run(tmp_path / ending, [source], size=64, **options)
        assert opened.run(tmp_path / f"1{ending}", [source], size=1, **options) == whole
    found = output_rows(tmp_path / ".jsonl" / "out.jsonl")
    assert opened.model.answer_many is not None
    answers = opened.model.answer_many([{**request, **settings} for request in requests])
    for row, answer in zip(found, answers, strict=True):
        predicted = {name: row[name] for name in row if name not in ("row", "error", "truncated_tokens")}
        if answer is answers[1]:
            assert row["error"] == "The column 'text' is empty." and not any(predicted.values())
        elif isinstance(answer, HfxError):
            assert row["error"] == answer.message and not any(predicted.values())
        else:
            assert row["error"] is None and alike(predicted, cells_of(answer)), row
    assert sum(row["error"] is not None for row in found) == 1  # the empty cell
    typed = output_rows(tmp_path / ".parquet" / "out.parquet")
    assert [row["row"] for row in typed] == [1, 2, 3, 4]
    assert len(output_rows(tmp_path / ".csv" / "out.csv")) == len(TEXTS)


def test_several_answers_of_a_row_are_a_column_of_json(opened: Opened, tmp_path: Path) -> None:
    if opened.model.task != "question-answering":
        pytest.skip("of question answering")
    source = table(tmp_path / "a.csv", [{"text": TEXTS[3], "q": "Where?"}])
    settings = {"top_k": [3], "max_answer_len": [2], "doc_stride": [4], "handle_impossible_answer": [True]}
    opened.run(tmp_path / "job", [source], columns=["question=q", "context=text"], settings=settings)
    [row] = output_rows(tmp_path / "job" / "predictions.csv")
    answer = opened.model.answer({"question": ["Where?"], "context": [TEXTS[3]], **settings})
    assert alike(json.loads(row["answers"]), answer["answers"]) and len(answer["answers"]) == 3
    assert (row["answer"] or "") == answer["answers"][0]["answer"]  # an empty cell is no text


def test_columns_that_do_not_fit_the_inputs_of_a_task_are_refused(opened: Opened, tmp_path: Path) -> None:
    source = table(tmp_path / "a.csv", [{"text": "a", "q": "b"}])
    asks = opened.model.task == "question-answering"
    settings = {"candidate_labels": LABELS} if opened.model.task == "zero-shot-classification" else {}
    with pytest.raises(UsageError, match="for context" if asks else "two columns"):
        opened.plan(tmp_path / "job", [source], columns=["question=q"] if asks else ["q", "text"], settings=settings)


def test_zero_shot_classification_needs_labels(opened: Opened) -> None:
    if opened.model.task == "zero-shot-classification":
        with pytest.raises(UsageError, match="needs labels"):
            check_columns({"text_input": "text"}, opened.model.metadata)
