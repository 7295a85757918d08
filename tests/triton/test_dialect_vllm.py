"""vLLM's API on `hfx serve`: /score of re-rankers, and of embedders by cosine; /classify; /pooling."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.client import Client
from tests.rigs.clients.dialect_calls import RANKER, call
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton
QUERIES = ["a cat?", "who ran?", "a cat?"]
DOCUMENTS = ["the cat sat", "the dog ran in paris", "a bad film"]


def scores(server: ServeProcess, path: str, body: dict[str, Any]) -> list[float]:
    status, _, answer = call(server, path, body)
    assert status == 200, answer
    assert answer["object"] == "list" and {each["object"] for each in answer["data"]} == {"score"}
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return [each["score"] for each in answer["data"]]


@pytest.mark.parametrize("path", ["/score", "/v1/score", f"/models/{RANKER}/score"])
@pytest.mark.parametrize("raw", [False, True])
def test_one_text_or_a_list_of_texts_is_scored_against_documents(
    path: str, raw: bool, dialects: ServeProcess, grpc: Client
) -> None:
    def expected(query: str, document: str) -> float:
        return grpc.rank(RANKER, query, [document], raw_scores=raw or None)[0].score

    body = {"model": RANKER, "use_activation": not raw}
    one = [expected(QUERIES[0], document) for document in DOCUMENTS]
    assert scores(dialects, path, {**body, "text_1": QUERIES[0], "text_2": DOCUMENTS}) == one
    assert scores(dialects, path, {**body, "queries": QUERIES[:1], "documents": DOCUMENTS}) == one
    many = [expected(*pair) for pair in zip(QUERIES, DOCUMENTS, strict=True)]
    assert scores(dialects, path, {**body, "text_1": QUERIES, "text_2": DOCUMENTS}) == many
    assert scores(dialects, path, {**body, "data_1": QUERIES, "data_2": DOCUMENTS}) == many
    assert scores(dialects, path, {**body, "text_1": QUERIES[1], "text_2": DOCUMENTS[1]}) == many[1:2]


def test_rerank_answers_documents_as_v1_rerank_does(dialects: ServeProcess) -> None:
    body = {"model": RANKER, "query": QUERIES[0], "documents": DOCUMENTS, "top_n": 2}
    found = [call(dialects, path, body)[2]["results"] for path in ("/rerank", "/v1/rerank")]
    assert found[0] == found[1] and len(found[0]) == 2


def test_an_embedder_scores_pairs_by_their_cosine(dialects: ServeProcess, grpc: Client) -> None:
    vectors = grpc.embed("similar-int8", [*QUERIES, *DOCUMENTS])
    found = scores(dialects, "/score", {"model": "similar-int8", "text_1": QUERIES, "text_2": DOCUMENTS})
    assert found == pytest.approx((vectors[:3] * vectors[3:]).sum(axis=1), abs=1e-6)
    assert np.ptp(found) > 0


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (400, {"text_1": QUERIES, "text_2": DOCUMENTS[:2]}),
        (400, {"text_1": QUERIES, "text_2": DOCUMENTS[0]}),
        (400, {"text_1": QUERIES[0]}),
        (400, {"text_1": QUERIES[0], "documents": DOCUMENTS}),
        (400, {"text_1": QUERIES[0], "text_2": DOCUMENTS, "documents": DOCUMENTS}),
        (400, {"text_1": QUERIES[0], "text_2": []}),
        (400, {"text_1": QUERIES[0], "text_2": [3]}),
        (400, {"text_1": [[1, 2]], "text_2": DOCUMENTS}),
        (400, {"text_1": QUERIES[0], "text_2": DOCUMENTS, "use_activation": "no"}),
        (400, {"text_1": QUERIES[0], "text_2": DOCUMENTS, "truncate_prompt_tokens": 5}),
        (400, {"text_1": QUERIES[0], "text_2": DOCUMENTS, "model": "sentiment-fp32"}),
        (400, {"text_1": "a", "text_2": "b", "model": "similar-int8", "use_activation": False}),
        (404, {"text_1": QUERIES[0], "text_2": DOCUMENTS, "model": "nothing"}),
        (413, {"text_1": QUERIES[0], "text_2": ["a"] * 3000}),
        (400, {}),
    ],
)
def test_an_invalid_score_request_has_openais_error_body(
    status: int, fields: dict[str, Any], dialects: ServeProcess
) -> None:
    answered, _, answer = call(dialects, "/score", {"model": RANKER, **fields})
    assert (answered, bool(answer["error"]["message"])) == (status, True), answer


SENTIMENT, EMBEDDER, TEXTS = "sentiment-fp32", "similar-int8", ["a lovely garden", "The train is late."]


def by_label(grpc: Client, text: str) -> dict[str, float]:
    """Return the score of each label, best first."""
    return {each.label: each.score for each in grpc.classify(SENTIMENT, text, top_k=9).predictions}


@pytest.mark.parametrize("path", ["/classify", "/v1/classify/", f"/models/{SENTIMENT}/classify"])
def test_classify_returns_the_scores_of_the_labels_in_the_models_order(
    path: str, dialects: ServeProcess, grpc: Client, many_tasks: Path
) -> None:
    labels = json.loads((many_tasks / f"{SENTIMENT}_postprocess/1/settings.json").read_text())["labels"]
    expected = [by_label(grpc, text) for text in TEXTS]
    status, _, answer = call(dialects, path, {"model": SENTIMENT, "input": TEXTS})
    assert (status, answer["object"], answer["model"], "labels" in answer) == (200, "list", SENTIMENT, False)
    assert [each["index"] for each in answer["data"]] == [0, 1]
    for each, scores in zip(answer["data"], expected, strict=True):
        assert each["probs"] == [scores[label] for label in labels]
        assert (each["label"], each["num_classes"]) == (next(iter(scores)), len(labels))
    one = call(dialects, path, {"input": TEXTS[0], "priority": 0, "user": "anna", "rid": "7", "use_activation": True})[
        2
    ]
    assert (one["data"], one["labels"]) == (answer["data"][:1], expected[0])
    assert one["usage"]["prompt_tokens"] == one["usage"]["total_tokens"] > 0 == one["usage"]["completion_tokens"]
    best = call(dialects, path, {"text": TEXTS[0], "top_k": 1})[2]["labels"]
    assert best == dict([next(iter(expected[0].items()))])


def test_classify_answers_semantic_routers_requests_as_predict_does(dialects: ServeProcess) -> None:
    body = {"inputs": TEXTS[0]}  # all that its http_classifier sends
    status, _, answer = call(dialects, "/classify", body)
    assert (status, answer) == (200, call(dialects, "/predict", body)[2])
    assert sum(each["score"] for each in answer) == pytest.approx(1, abs=1e-3)  # it refuses other sums


def test_pooling_returns_vectors_or_scores(dialects: ServeProcess, grpc: Client) -> None:
    vectors = grpc.embed(EMBEDDER, TEXTS)
    for task in ("embed", None):
        status, _, answer = call(dialects, "/pooling", {"model": EMBEDDER, "input": TEXTS, "task": task})
        assert (status, answer["object"], {each["object"] for each in answer["data"]}) == (200, "list", {"pooling"})
        assert np.array_equal(np.array([each["data"] for each in answer["data"]], np.float32), vectors)
    body = {"model": EMBEDDER, "input": TEXTS[0], "encoding_format": "base64"}
    [row] = call(dialects, "/pooling", body)[2]["data"]
    assert base64.b64decode(row["data"]) == vectors[0].astype("<f4").tobytes()
    probs = [each["probs"] for each in call(dialects, "/classify", {"model": SENTIMENT, "input": TEXTS})[2]["data"]]
    scores = call(dialects, "/pooling", {"model": SENTIMENT, "input": TEXTS, "task": "classify"})[2]["data"]
    assert [each["data"] for each in scores] == probs


LONG = "a " * 400  # tokens; the model reads 128


@pytest.mark.parametrize(
    ("status", "field", "fields"),
    [
        (400, "input", {"input": []}),
        (400, "input", {"input": {"a": [[[]]]}}),
        (400, "input", {"input": [1, 2]}),
        (400, "input", {"input": [TEXTS[0], None]}),
        (400, "input", {"input": "\ud800"}),
        (400, "input", {}),
        (400, "messages", {"messages": [{"role": "user", "content": "a"}]}),
        (400, "use_activation", {"input": TEXTS, "use_activation": False}),
        (400, "top_k", {"input": TEXTS[0], "top_k": 0}),
        (400, "truncate_prompt_tokens", {"input": TEXTS, "truncate_prompt_tokens": 5}),
        (400, "model", {"input": TEXTS, "model": RANKER}),
        (400, "model", {"input": TEXTS, "model": 3}),
        (404, None, {"input": TEXTS, "model": "nothing"}),
        (413, "input", {"input": ["a"] * 3000}),
        (413, "input", {"input": LONG}),
    ],
)
def test_an_invalid_classify_request_names_the_field(
    status: int, field: str | None, fields: dict[str, Any], dialects: ServeProcess
) -> None:
    answered, _, answer = call(dialects, "/classify", {"model": SENTIMENT, **fields})
    assert (answered, answer["error"]["param"]) == (status, field), answer
    assert "\n" not in answer["error"]["message"]


@pytest.mark.filterwarnings("ignore:A text is longer")
@pytest.mark.parametrize("cut", [{"truncate_prompt_tokens": -1}, {"truncate": True}, {"truncate_prompt_tokens": 512}])
def test_a_long_text_is_cut_only_on_request(cut: dict[str, Any], dialects: ServeProcess, grpc: Client) -> None:
    status, _, answer = call(dialects, "/classify", {"model": SENTIMENT, "input": LONG, **cut})
    assert (status, answer["labels"]) == (200, by_label(grpc, LONG))


@pytest.mark.parametrize(
    ("status", "field", "fields"),
    [
        (400, "task", {"model": EMBEDDER, "input": TEXTS, "task": "token_classify"}),
        (400, "task", {"model": EMBEDDER, "input": TEXTS, "task": "classify"}),
        (400, "task", {"model": EMBEDDER, "input": TEXTS, "task": ["embed"]}),
        (400, "encoding_format", {"model": EMBEDDER, "input": TEXTS, "encoding_format": "bytes"}),
        (400, "dimensions", {"model": EMBEDDER, "input": TEXTS, "dimensions": 3}),
        (400, "endianness", {"model": EMBEDDER, "input": TEXTS, "endianness": "big"}),
        (400, "data", {"model": EMBEDDER, "input": TEXTS, "data": {}}),
        (400, "model", {"model": "entities-fp32", "input": TEXTS}),
        (413, "input", {"model": EMBEDDER, "input": LONG}),
    ],
)
def test_an_invalid_pooling_request_names_the_field(
    status: int, field: str, fields: dict[str, Any], dialects: ServeProcess
) -> None:
    answered, _, answer = call(dialects, "/pooling", fields)
    assert (answered, answer["error"]["param"]) == (status, field), answer
