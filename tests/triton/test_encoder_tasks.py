"""Every encoder task through a real Triton, compared with transformers' own pipelines on held-out texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer

from hfx.client import Client
from hfx.client.calls import LongTexts
from hfx.local.encoder import LocalModel
from hfx.repository.catalog import model as read_model
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.conftest import PUBLISHED
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.checkpoints.question_answering import best_answer

pytestmark = pytest.mark.triton

HELD_OUT = 60
SCORE_TOLERANCE = 1e-4  # float32 sums in another order
LABELS = ["travel", "food", "music"]
SENTIMENT = [name for name, (checkpoint, _, _) in PUBLISHED.items() if checkpoint.startswith("sentiment-")]
Pipe = Callable[..., Any]


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    with Client(server.grpc_url) as opened:
        yield opened


def agreement_floor(repository: Path, name: str) -> float:
    """Return the manifest's agreement, less what chance may take from another sample of texts."""
    figures: Any = read_model(repository, name).parity["cpu"]
    return float(figures["agreement"]) - 0.05


@pytest.mark.parametrize("name", SENTIMENT)
def test_text_classification_equals_the_pipeline(name: str, client: Client, pipe: Pipe, repository: Path) -> None:
    checkpoint, precision, _ = PUBLISHED[name]
    compare_labels(client, repository, name, precision, pipe("text-classification", checkpoint))


@pytest.mark.full
@pytest.mark.parametrize("architecture", ["electra", "albert", "deberta", "xlm-roberta", "bert"])
def test_an_architecture_in_int8_equals_the_pipeline(architecture: str, pipe: Pipe, tmp_path: Path) -> None:
    checkpoint = f"sentiment-{architecture}"
    export_zoo(checkpoint, tmp_path, "m", "int8")
    with EmbeddedServer(tmp_path) as server, Client(server.grpc_url) as client:
        compare_labels(client, tmp_path, "m", "int8", pipe("text-classification", checkpoint))


def compare_labels(client: Client, repository: Path, name: str, precision: str, pipeline: Pipe) -> None:
    texts = [example.text for example in zoo.heldout("sentiment", HELD_OUT)]
    expected, answers = pipeline(texts), client.classify(name, texts)
    if precision == "fp32":
        assert [answer.label for answer in answers] == [row["label"] for row in expected]
        assert [a.score for a in answers] == pytest.approx([row["score"] for row in expected], abs=SCORE_TOLERANCE)
    else:
        same = np.mean([answer.label == row["label"] for answer, row in zip(answers, expected, strict=True)])
        assert same >= agreement_floor(repository, name)


def test_several_labels_are_ranked_as_the_pipeline_ranks_them(client: Client, pipe: Pipe) -> None:
    texts = [example.text for example in zoo.heldout("topics", HELD_OUT)]
    expected = pipe("text-classification", "topics-roberta")(texts, top_k=3)
    for answer, rows in zip(client.classify("topics-fp32", texts, top_k=3), expected, strict=True):
        assert [p.label for p in answer.predictions] == [row["label"] for row in rows]
        assert [p.score for p in answer.predictions] == pytest.approx([r["score"] for r in rows], abs=SCORE_TOLERANCE)


@pytest.mark.parametrize("long", ["mean", "max"])
def test_scores_of_a_long_text_join_those_of_its_windows(long: str, client: Client, repository: Path) -> None:
    """The windows are classified one by one, by their own texts."""
    words = " ".join(example.text for example in zoo.heldout("sentiment", HELD_OUT)).split()
    tokenizer = AutoTokenizer.from_pretrained(zoo.checkpoint("sentiment-distilbert"))
    ids = tokenizer(" ".join(words), add_special_tokens=False, verbose=False)["input_ids"]
    windows = [ids[at : at + 126] for at in range(0, len(ids) - 26, 100)]  # of 128 tokens, 26 of them shared
    model = AutoModelForSequenceClassification.from_pretrained(zoo.checkpoint("sentiment-distilbert")).eval()
    with torch.no_grad():
        special = [torch.tensor([[tokenizer.cls_token_id, *each, tokenizer.sep_token_id]]) for each in windows]
        scores = np.stack([model(each).logits.softmax(-1)[0].numpy() for each in special])
    weights = [each.shape[1] for each in special]
    expected = scores.max(axis=0) if long == "max" else np.average(scores, axis=0, weights=weights)
    labels = {model.config.id2label[at]: float(score) for at, score in enumerate(expected)}
    answer = client.classify("sentiment-fp32", " ".join(words), top_k=3, long=long, stride=26)
    assert {each.label: each.score for each in answer.predictions} == pytest.approx(labels, abs=SCORE_TOLERANCE)
    assert answer.truncated_tokens == 0 and len(windows) > 3
    local = LocalModel.open(repository, "sentiment-fp32")
    found = local.infer({"text_input": " ".join(words), "top_k": 3, "long": long, "stride": 26})
    assert found["score"] == [each.score for each in answer.predictions]


def test_entities_equal_the_pipeline(client: Client, pipe: Pipe) -> None:
    texts = [example.text for example in zoo.heldout("entities", HELD_OUT)]
    expected = pipe("token-classification", "entities-bert", aggregation_strategy="simple")(texts)
    for answer, rows in zip(client.label_tokens("entities-fp32", texts), expected, strict=True):
        found = [(e.entity, e.start, e.end, e.word) for e in answer.entities]
        assert found == [(row["entity_group"], row["start"], row["end"], row["word"]) for row in rows]
        scores = [float(row["score"]) for row in rows]
        assert [e.score for e in answer.entities] == pytest.approx(scores, abs=SCORE_TOLERANCE)


@pytest.mark.parametrize(("stride", "texts"), [(None, 12), (None, 60), (0, 25), (100, 25)])
def test_entities_of_a_long_text_equal_the_pipelines_with_the_same_stride(
    stride: int | None, texts: int, client: Client, pipe: Pipe, repository: Path
) -> None:
    text = " ".join(example.text for example in zoo.heldout("entities", texts))
    options = {"aggregation_strategy": "simple", "stride": 64 if stride is None else stride}  # 64: half of a window
    expected = [
        (row["entity_group"], row["start"], row["end"], row["word"], pytest.approx(row["score"], abs=SCORE_TOLERANCE))
        for row in pipe("token-classification", "entities-bert", **options)(text)
    ]
    reading: LongTexts = {} if stride is None else {"stride": stride}
    answer = client.label_tokens("entities-fp32", text, **reading)
    assert [(e.entity, e.start, e.end, e.word, e.score) for e in answer.entities] == expected
    assert answer.truncated_tokens == 0
    settings = {} if stride is None else {"stride": stride}
    local = LocalModel.open(repository, "entities-fp32").infer({"text_input": text, **settings})
    assert json.loads(local["entities"]) == [asdict(entity) for entity in answer.entities]


def test_answers_equal_the_pipeline_over_windows(client: Client) -> None:
    examples = zoo.heldout("answers", HELD_OUT)
    folder = zoo.checkpoint("answers-bert")
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for example in examples:
        expected = best_answer(model, tokenizer, example.question, example.context)
        assert expected is not None
        answer = client.answer("answers-fp32", example.question, example.context)
        assert (answer.answer, answer.start, answer.end) == (expected["answer"], expected["start"], expected["end"])
        assert answer.score == pytest.approx(expected["score"], abs=SCORE_TOLERANCE)


@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot_equals_the_pipeline(multi_label: bool, client: Client, pipe: Pipe) -> None:
    texts = [example.text for example in zoo.heldout("topics", 20)]
    expected = pipe("zero-shot-classification", "nli-bart")(texts, LABELS, multi_label=multi_label)
    for answer, row in zip(client.zero_shot("nli-fp32", texts, LABELS, multi_label=multi_label), expected, strict=True):
        scores = {p.label: p.score for p in answer.predictions}
        assert scores == pytest.approx(dict(zip(row["labels"], row["scores"], strict=True)), abs=SCORE_TOLERANCE)


def test_embeddings_equal_mean_pooled_hidden_states(client: Client, pipe: Pipe) -> None:
    """The pipeline gives hidden states; sentence-transformers' files specify their mean, scaled to length 1."""
    texts = [example.first for example in zoo.heldout("similarity", 20)]
    vectors = client.embed("similar-fp32", texts)
    for vector, hidden in zip(vectors, pipe("feature-extraction", "similar-mpnet")(texts), strict=True):
        mean = np.asarray(hidden[0]).mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=SCORE_TOLERANCE)
