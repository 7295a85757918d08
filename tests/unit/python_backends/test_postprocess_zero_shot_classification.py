"""Ranked candidate labels equal those of transformers' ZeroShotClassificationPipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hfx.python_backends.errors import InvalidInput
from hfx.python_backends.inputs import strings
from hfx.python_backends.tasks.postprocessing import Postprocessor
from tests import zoo
from tests.rigs.checkpoints.encoder_line import EDGE_TEXTS, encoded, encoder_for, postprocessor_for, run_torch

LABELS = ["travel", "food", "weather", "a longer label", "sport", "emoji 😀"]


@pytest.fixture(scope="module")
def checkpoint() -> tuple[Any, Any]:
    folder = zoo.checkpoint("nli-bart")
    return AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder).eval()


def ranked(answer: dict[str, Any]) -> list[tuple[str, float]]:
    labels = [label.decode() for label in answer["label"][0]]
    return list(zip(labels, answer["score"][0].tolist(), strict=True))


def label_tensor(labels: list[str]) -> Any:
    return strings(*labels).reshape(1, -1)


def ranking(folder: Path, entailment: int = 2, **settings: Any) -> Postprocessor:
    contradiction = -1 if entailment == 0 else 0
    return postprocessor_for(
        folder, task="zero-shot-classification", entailment=entailment, contradiction=contradiction, **settings
    )


@pytest.mark.slow
@pytest.mark.parametrize("multi_label", [None, False, True])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_ranked_labels_equal_those_of_the_pipeline(
    checkpoint: Any, count: int, multi_label: bool | None, tmp_path: Path
) -> None:
    tokenizer, model = checkpoint
    pipe = pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    encoder = encoder_for(tokenizer, "zero-shot-classification", tmp_path / "tokenize")
    postprocessor = ranking(tmp_path / "post", pipe.entailment_id)
    labels = LABELS[:count]
    for text in (*(text for text in EDGE_TEXTS if text), "Anna went to Paris. " * 80):
        expected = pipe(text, labels, multi_label=bool(multi_label))
        fed = run_torch(model, encoded(encoder, [(text, labels)]), ("logits",)) | {
            "candidate_labels": label_tensor(labels)
        }
        if multi_label is not None:
            fed["multi_label"] = np.array([[multi_label]])
        assert ranked(postprocessor.answer(fed)) == list(zip(expected["labels"], expected["scores"], strict=True))


def test_top_k_limits_the_labels(tmp_path: Path) -> None:
    fed = {"logits": np.arange(9, dtype=np.float32).reshape(1, 3, 3), "candidate_labels": label_tensor(LABELS[:3])}
    answer = ranking(tmp_path).answer(fed | {"top_k": np.array([[2]], np.int32)})
    assert [label for label, _ in ranked(answer)] == ["weather", "food"]
    assert ranking(tmp_path, default_top_k=1).answer(fed)["label"].shape == (1, 1)
    with pytest.raises(InvalidInput, match="top_k must be at least 1"):
        ranking(tmp_path).answer(fed | {"top_k": np.array([[0]], np.int32)})


def test_each_row_has_its_own_multi_label(tmp_path: Path) -> None:
    logits = np.zeros((2, 2, 3), np.float32)
    fed = {"logits": logits, "candidate_labels": np.repeat(label_tensor(["a", "b"]), 2, axis=0)}
    answer = ranking(tmp_path).answer(fed | {"multi_label": np.array([[False], [True]])})
    assert answer["score"].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    logits[:, :, 2] = 5.0
    answer = ranking(tmp_path).answer(fed | {"multi_label": np.array([[False], [True]])})
    assert answer["score"][0].tolist() == [0.5, 0.5]
    assert (answer["score"][1] > 0.9).all()
    with pytest.raises(InvalidInput, match="multi_label"):
        ranking(tmp_path).answer(fed | {"multi_label": np.array([[False]])})


def test_huge_logits_still_give_shares(tmp_path: Path) -> None:
    fed = {"logits": np.full((1, 2, 3), 500.0, np.float32), "candidate_labels": label_tensor(["a", "b"])}
    assert ranking(tmp_path).answer(fed)["score"].tolist() == [[0.5, 0.5]]


def test_entailment_may_be_the_first_class(tmp_path: Path) -> None:
    logits = np.array([[[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]]], np.float32)
    answer = ranking(tmp_path, entailment=0).answer(
        {"logits": logits, "candidate_labels": label_tensor(["yes", "no"]), "multi_label": np.array([[True]])}
    )
    assert [label for label, _ in ranked(answer)] == ["yes", "no"]


def test_labels_that_do_not_fit_the_logits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"candidate_labels has the shape \[1, 3\], not \[1, 2\]"):
        ranking(tmp_path).answer(
            {"logits": np.zeros((1, 2, 3), np.float32), "candidate_labels": label_tensor(LABELS[:3])}
        )


def test_scores_of_a_batch_that_was_padded_to_more_labels_rank_as_alone(tmp_path: Path) -> None:
    logits = np.array([[[0.1, 0.2, 0.9], [0.3, 0.1, 0.4]]], np.float32)
    padded = np.concatenate([logits, np.full((1, 3, 3), 50, np.float32)], axis=1)
    fed = {"candidate_labels": label_tensor(LABELS[:2])}
    alone, padded_to_five = (ranked(ranking(tmp_path).answer(fed | {"logits": each})) for each in (logits, padded))
    assert alone == padded_to_five
