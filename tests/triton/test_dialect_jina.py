"""Jina's API for rerankers on `hfx serve`."""

from __future__ import annotations

from typing import Any

import pytest

from hfx.client import Client
from tests.rigs.clients.dialect_calls import RANKER, call
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton
QUERY = "a cat?"
DOCUMENTS = [f"the cat {'sat ' * count}" for count in range(5)]


def test_documents_are_ranked_and_cut_at_top_n(dialects: ServeProcess, grpc: Client) -> None:
    expected = [(each.index, each.score) for each in grpc.rank(RANKER, QUERY, DOCUMENTS)]
    body: dict[str, Any] = {"model": RANKER, "query": QUERY, "documents": [DOCUMENTS[0], *DOCUMENTS[1:]]}
    status, _, answer = call(dialects, "/v1/rerank", body)
    assert (status, answer["model"]) == (200, RANKER)
    assert [(each["index"], each["relevance_score"]) for each in answer["results"]] == expected
    assert [each["document"]["text"] for each in answer["results"]] == [DOCUMENTS[index] for index, _ in expected]
    body |= {"documents": [{"text": each} for each in DOCUMENTS], "top_n": 2, "return_documents": False}
    del body["model"]
    for path in ("/v1/rerank", f"/models/{RANKER}/v1/rerank"):
        results = call(dialects, path, body)[2]["results"]
        assert results == [{"index": index, "relevance_score": score} for index, score in expected[:2]]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "sentiment-fp32", "query": QUERY, "documents": DOCUMENTS},
        {"model": RANKER, "query": QUERY, "documents": []},
        {"model": RANKER, "query": QUERY, "documents": QUERY},
        {"model": RANKER, "query": QUERY, "documents": [{"title": "a"}]},
        {"model": RANKER, "documents": DOCUMENTS},
        {"model": RANKER, "query": QUERY, "documents": DOCUMENTS, "top_n": 0},
        {"model": RANKER, "query": QUERY, "documents": DOCUMENTS, "overlap_tokens": 3},
    ],
)
def test_an_invalid_rerank_request_has_jinas_error_body(body: Any, dialects: ServeProcess) -> None:
    status, _, answer = call(dialects, "/v1/rerank", body)
    assert (status, list(answer)) == (400, ["detail"]), answer
