"""Cohere's own clients, for both versions of its API, against `hfx serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hfx.client import Client
from tests.rigs.clients.dialect_calls import API_KEY, RANKER, call
from tests.rigs.servers.serve_process import ServeProcess

if TYPE_CHECKING:  # it takes seconds to import
    import cohere

pytestmark = pytest.mark.triton
QUERY = "a cat?"
DOCUMENTS = [f"the cat {'sat ' * count}" for count in range(5)]


@pytest.fixture(scope="module")
def second(dialects: ServeProcess) -> cohere.ClientV2:
    import cohere

    return cohere.ClientV2(API_KEY, base_url=dialects.http_url)


@pytest.mark.parametrize("below", ["", f"/models/{RANKER}"])
def test_the_second_version_ranks_documents(below: str, dialects: ServeProcess, grpc: Client) -> None:
    import cohere

    expected = [(each.index, each.score) for each in grpc.rank(RANKER, QUERY, DOCUMENTS)]
    client = cohere.ClientV2(API_KEY, base_url=dialects.http_url + below)
    answer = client.rerank(model=RANKER, query=QUERY, documents=DOCUMENTS)
    assert [(each.index, each.relevance_score) for each in answer.results] == expected and answer.id
    answer = client.rerank(model=RANKER, query=QUERY, documents=DOCUMENTS, top_n=2, max_tokens_per_doc=4096)
    assert [(each.index, each.relevance_score) for each in answer.results] == expected[:2]


def test_documents_are_returned_to_clients_that_send_the_first_versions_field(dialects: ServeProcess) -> None:
    body = {"model": RANKER, "query": QUERY, "documents": DOCUMENTS, "return_documents": True}
    status, _, answer = call(dialects, "/v2/rerank", body)
    assert status == 200 and {each["document"]["text"] for each in answer["results"]} == set(DOCUMENTS)


def test_the_first_version_ranks_documents_and_returns_them(dialects: ServeProcess, grpc: Client) -> None:
    import cohere

    expected = [(each.index, each.score) for each in grpc.rank(RANKER, QUERY, DOCUMENTS)]
    client = cohere.Client(API_KEY, base_url=dialects.http_url)
    objects: Any = [{"text": DOCUMENTS[0], "title": "short"}, *DOCUMENTS[1:]]
    answer = client.rerank(model=RANKER, query=QUERY, documents=objects, rank_fields=["text"], max_chunks_per_doc=1)
    assert [(each.index, each.relevance_score) for each in answer.results] == expected
    assert [each.document and each.document.text for each in answer.results] == [DOCUMENTS[i] for i, _ in expected]
    [titled] = [each.document for each in answer.results if each.index == 0]
    assert titled and titled.model_dump()["title"] == "short"
    answer = client.rerank(model=RANKER, query=QUERY, documents=DOCUMENTS, top_n=1, return_documents=False)
    assert [(each.index, each.document) for each in answer.results] == [(expected[0][0], None)]


def test_the_second_version_embeds_texts(second: cohere.ClientV2, grpc: Client) -> None:
    answer = second.embed(
        model="similar-int8", texts=DOCUMENTS, input_type="search_query", embedding_types=["float"], truncate="END"
    )
    np.testing.assert_array_equal(np.float32(answer.embeddings.float_ or []), grpc.embed("similar-int8", DOCUMENTS))
    assert answer.texts == DOCUMENTS and answer.id


def test_errors_become_the_exceptions_of_coheres_client(second: cohere.ClientV2, dialects: ServeProcess) -> None:
    import cohere

    with pytest.raises(cohere.NotFoundError, match="no model"):
        second.rerank(model="nothing", query=QUERY, documents=DOCUMENTS)
    with pytest.raises(cohere.BadRequestError, match="text-ranking"):
        second.rerank(model="sentiment-fp32", query=QUERY, documents=DOCUMENTS)
    with pytest.raises(cohere.UnauthorizedError):
        cohere.ClientV2("another", base_url=dialects.http_url).rerank(model=RANKER, query=QUERY, documents=DOCUMENTS)


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/v2/rerank", {"documents": []}, 400),
        ("/v2/rerank", {"documents": QUERY}, 400),
        ("/v2/rerank", {"documents": [{"text": "a"}]}, 400),  # of the first version alone
        ("/v2/rerank", {"documents": ["\ud800"]}, 400),
        ("/v2/rerank", {"documents": ["a"] * 3000}, 413),
        ("/v2/rerank", {"query": None}, 400),
        ("/v2/rerank", {"top_n": 0}, 400),
        ("/v2/rerank", {"top_n": 1.5}, 400),
        ("/v2/rerank", {"max_tokens_per_doc": 4}, 400),
        ("/v2/rerank", {"relevant_spans": {"enabled": True}}, 400),
        ("/v2/rerank", {"return_documents": 1}, 400),
        ("/v1/rerank", {"max_chunks_per_doc": 3}, 400),
        ("/v1/rerank", {"rank_fields": ["title", "text"]}, 400),
    ],
)
def test_an_invalid_rerank_request_has_coheres_error_body(
    path: str, fields: dict[str, Any], status: int, dialects: ServeProcess
) -> None:
    body = {"model": RANKER, "query": QUERY, "documents": DOCUMENTS, **fields}
    answered, _, answer = call(dialects, path, body)
    assert (answered, list(answer)) == (status, ["message" if path == "/v2/rerank" else "detail"]), answer


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": RANKER}, 400),
        ({"texts": "a"}, 400),
        ({"texts": []}, 400),
        ({"input_type": "image"}, 400),
        ({"input_type": None}, 400),
        ({"embedding_types": ["int8"]}, 400),
        ({"output_dimension": 7}, 400),
        ({"truncate": "START"}, 400),
        ({"truncate": "NONE", "texts": ["cat " * 1000]}, 413),
        ({"images": []}, 400),
    ],
)
def test_an_invalid_embed_request_has_coheres_error_body(
    fields: dict[str, Any], status: int, dialects: ServeProcess
) -> None:
    body = {"model": "similar-int8", "texts": ["a"], "input_type": "clustering", **fields}
    answered, _, answer = call(dialects, "/v2/embed", body)
    assert (answered, list(answer)) == (status, ["message"]), answer
