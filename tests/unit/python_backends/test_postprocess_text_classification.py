"""Labels and scores equal those of transformers' TextClassificationPipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hfx.exporter.encoder.kinds.classifier import compare
from hfx.exporter.encoder.kinds.kind import Comparison
from hfx.python_backends.errors import InvalidInput
from hfx.python_backends.tasks.postprocessing import Postprocessor, answer_each, open_postprocessor
from tests import zoo
from tests.rigs.checkpoints.encoder_line import EDGE_TEXTS, encoded, encoder_for, postprocessor_for, run_torch

ACTIVATIONS = [
    ("single_label_classification", "softmax"),
    ("multi_label_classification", "sigmoid"),
    ("regression", "none"),
]


def pairs(answer: dict[str, Any], row: int = 0) -> list[tuple[str, float]]:
    labels = [label.decode() for label in answer["label"][row]]
    return list(zip(labels, answer["score"][row].tolist(), strict=True))


def three_labels(folder: Path, activation: str = "softmax", top_k: int | None = 1) -> Postprocessor:
    return postprocessor_for(
        folder, task="text-classification", labels=["a", "b", "c"], activation=activation, default_top_k=top_k
    )


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "activation"), ACTIVATIONS)
@pytest.mark.parametrize("name", ["sentiment-distilbert", "topics-roberta"])
def test_labels_and_scores_equal_those_of_the_pipeline(
    name: str, problem: str, activation: str, tmp_path: Path
) -> None:
    folder = zoo.checkpoint(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.problem_type = problem
    labels = [model.config.id2label[at] for at in range(model.config.num_labels)]
    pipe = pipeline("text-classification", model=model, tokenizer=tokenizer)
    encoder = encoder_for(tokenizer, "text-classification", tmp_path / "tokenize")
    postprocessor = postprocessor_for(
        tmp_path / "post", task="text-classification", labels=labels, activation=activation, default_top_k=None
    )
    for text in (*EDGE_TEXTS, "The weather was wonderful. " * 60):
        expected = pipe(text, top_k=None, truncation=True, max_length=tokenizer.model_max_length)
        answer = postprocessor.answer(run_torch(model, encoded(encoder, [text]), ("logits",)))
        assert pairs(answer) == [(each["label"], float(np.float32(each["score"]))) for each in expected], text[:40]


def test_one_label_is_scored_by_sigmoid_as_the_pipeline_does(tmp_path: Path) -> None:
    postprocessor = postprocessor_for(
        tmp_path, task="text-classification", labels=["only"], activation="sigmoid", default_top_k=1
    )
    answer = postprocessor.answer({"logits": np.array([[0.5], [-200.0]], np.float32)})
    assert answer["label"].tolist() == [[b"only"], [b"only"]]
    assert answer["score"].tolist() == [[pytest.approx(0.6224593)], [0.0]]
    assert answer["score"].dtype == np.float32


def test_top_k_best_labels_come_best_first_and_ties_in_their_order(tmp_path: Path) -> None:
    logits = np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]], np.float32)
    postprocessor = three_labels(tmp_path)
    for count, expected in ((1, ["b", "a"]), (2, ["bc", "ab"]), (3, ["bca", "abc"]), (99, ["bca", "abc"])):
        answer = postprocessor.answer({"logits": logits, "top_k": np.full((2, 1), count, np.int32)})
        assert [b"".join(row).decode() for row in answer["label"]] == expected
        assert answer["score"].shape == answer["label"].shape == (2, min(count, 3))
    for default, count in ((1, 1), (2, 2), (None, 3)):
        assert three_labels(tmp_path, top_k=default).answer({"logits": logits})["label"].shape == (2, count)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([[0]], "top_k must be at least 1, not 0"),
        ([[-3]], "top_k must be at least 1, not -3"),
        ([[1], [2]], "top_k differs between the rows"),
        (np.zeros((1, 0)), "top_k is empty"),
    ],
)
def test_a_bad_top_k_is_refused(values: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=reason):
        three_labels(tmp_path).answer({"logits": np.zeros((2, 3), np.float32), "top_k": np.array(values, np.int32)})


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 17, 64, 131])
@pytest.mark.parametrize("activation", [activation for _, activation in ACTIVATIONS])
def test_requests_have_the_same_answers_alone_and_together(count: int, activation: str, tmp_path: Path) -> None:
    labels, chance = [f"label {at}" for at in range(count)], np.random.default_rng(0)
    postprocessor = postprocessor_for(
        tmp_path, task="text-classification", labels=labels, activation=activation, default_top_k=min(count, 5)
    )
    requests = [{"logits": chance.normal(size=(rows, count)).astype(np.float32)} for rows in (1, 1, 4, 1, 2, 1, 64)]
    requests[3]["top_k"] = np.array([[1]], np.int32)
    requests[5]["top_k"] = np.array([[0]], np.int32)
    together = answer_each(postprocessor, requests)
    assert isinstance(together.pop(5), InvalidInput) and requests.pop(5)
    for answers, request in zip(together, requests, strict=True):
        assert not isinstance(answers, InvalidInput)
        alone = postprocessor.answer(request)
        assert answers["label"].tolist() == alone["label"].tolist()
        assert answers["score"].tobytes() == alone["score"].tobytes()


def test_a_task_without_postprocessing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({"task": "text-generation"}))
    with pytest.raises(ValueError, match="text-generation"):
        open_postprocessor(tmp_path)


def test_of_labels_with_one_name_the_best_counts() -> None:
    answer = {"label": ["same", "same", "other"], "score": [0.6, 0.3, 0.1]}
    assert compare(answer, answer) == Comparison(same=True, drift=0.0)
    swapped = compare({"label": ["a", "b", "b"], "score": [0.4, 0.39, 0.2]}, {"label": ["b"], "score": [0.4]})
    assert not swapped.same and swapped.tie
