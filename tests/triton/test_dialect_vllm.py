"""vLLM's /score on `hfx serve`: re-rankers, and embedders by cosine."""

from __future__ import annotations

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
