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


# Fields of other re-rankers that ask for what hfx does anyway, and values that ask for something else.
TAKEN: dict[str, Any] = {
    "truncate_prompt_tokens": -1, "truncation_side": "right", "priority": 0, "max_tokens_per_doc": 4096,
    "max_tokens_per_query": 0, "user": "anna", "request_id": "1", "rank_fields": ["text"], "max_chunks_per_doc": 1,
    "mm_processor_kwargs": {}, "truncation": True, "return_embeddings": False, "relevant_spans": {"enabled": False},
}  # fmt: skip
REFUSED: dict[str, Any] = {
    "truncate_prompt_tokens": 4, "truncation_side": "left", "priority": 7, "max_tokens_per_doc": 8,
    "max_tokens_per_query": 8, "rank_fields": ["title"],
}  # fmt: skip
PATHS: dict[str, dict[str, Any]] = {
    "/v1/rerank": {"query": QUERY, "documents": DOCUMENTS},
    "/v2/rerank": {"query": QUERY, "documents": DOCUMENTS},
    "/rerank": {"query": QUERY, "documents": DOCUMENTS},
    f"/models/{RANKER}/rerank": {"query": QUERY, "texts": DOCUMENTS},
    "/score": {"model": RANKER, "text_1": QUERY, "text_2": DOCUMENTS},
}


@pytest.mark.parametrize("path", PATHS)
def test_every_path_takes_the_fields_of_all_rerankers(path: str, dialects: ServeProcess) -> None:
    def scores(answer: Any) -> Any:
        return answer if isinstance(answer, list) else answer.get("results") or answer["data"]

    status, _, expected = call(dialects, path, PATHS[path])
    assert status == 200
    assert scores(call(dialects, path, PATHS[path] | TAKEN)[2]) == scores(expected)
    for name, value in REFUSED.items():
        status, _, answer = call(dialects, path, {**PATHS[path], name: value})
        assert status in (400, 422) and f"{name} is " in str(answer), answer


def test_texts_beside_equal_documents_are_taken(dialects: ServeProcess) -> None:
    body = {"query": QUERY, "texts": DOCUMENTS}
    assert call(dialects, "/rerank", {**body, "documents": DOCUMENTS})[2] == call(dialects, "/rerank", body)[2]
    status, _, answer = call(dialects, "/rerank", {**body, "documents": DOCUMENTS[1:]})
    assert status == 422 and answer["error"].startswith("documents and texts differ")
