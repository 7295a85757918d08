"""The API of text-embeddings-inference on `hfx serve`, by huggingface_hub's client and by raw requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from huggingface_hub import InferenceClient

from hfx.client import Client
from tests.rigs.clients.dialect_calls import API_KEY, RANKER, call
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton
TEXTS = ["The garden was lovely.", "Anna went to Oslo by train."]
LONG = "A lovely garden. " * 200


def test_vectors_are_those_of_the_model(dialects: ServeProcess, grpc: Client) -> None:
    expected = grpc.embed("similar-int8", TEXTS)
    for path in ("/embed", "/models/similar-int8/embed"):
        status, _, answer = call(dialects, path, {"inputs": TEXTS})
        assert status == 200 and np.array_equal(np.array(answer, np.float32), expected)
    client = InferenceClient(f"{dialects.http_url}/embed", token=API_KEY)
    assert np.array_equal(client.feature_extraction(TEXTS[0], normalize=True, truncate=True), expected[:1])


def test_similarity_is_the_cosine_of_the_models_vectors(dialects: ServeProcess, grpc: Client) -> None:
    first, second = grpc.embed("similar-int8", TEXTS)
    _, _, answer = call(dialects, "/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}})
    assert answer == pytest.approx([1, first @ second], abs=1e-5)


def test_predictions_have_all_labels(dialects: ServeProcess, grpc: Client) -> None:
    expected = [
        [{"score": each.score, "label": each.label} for each in row.predictions]
        for row in grpc.classify("sentiment-fp32", TEXTS, top_k=3)
    ]
    assert call(dialects, "/predict", {"inputs": TEXTS[0]})[2] == expected[0]
    assert call(dialects, "/predict", {"inputs": [[text] for text in TEXTS]})[2] == expected


def test_rerank_has_the_order_and_scores_of_hfxs_client(dialects: ServeProcess, grpc: Client) -> None:
    texts = [f"the cat {'sat ' * count}" for count in range(20)]
    expected = [{"index": each.index, "score": each.score} for each in grpc.rank(RANKER, "a cat?", texts)]
    body = {"query": "a cat?", "texts": texts}
    assert call(dialects, "/rerank", body)[2] == expected
    assert call(dialects, f"/models/{RANKER}/rerank", body | {"return_text": True, "truncate": True})[2] == [
        {**each, "text": texts[each["index"]]} for each in expected
    ]
    raw = grpc.rank(RANKER, "a cat?", texts, raw_scores=True)
    assert call(dialects, "/rerank", body | {"raw_scores": True})[2] == [
        {"index": each.index, "score": each.score} for each in raw
    ]


def test_tokenize_gives_the_offsets_of_each_token(dialects: ServeProcess) -> None:
    status, _, [tokens] = call(dialects, "/models/sentiment-fp32/tokenize", {"inputs": TEXTS[0]})
    assert status == 200
    assert [tokens[0]["special"], tokens[-1]["special"]] == [True, True]
    assert all(token["text"] == TEXTS[0][token["start"] : token["stop"]] for token in tokens[1:-1])
    _, _, [plain] = call(dialects, "/models/sentiment-fp32/tokenize", {"inputs": TEXTS[0], "add_special_tokens": False})
    assert plain == tokens[1:-1]


def test_info_describes_the_model(dialects: ServeProcess) -> None:
    _, _, answer = call(dialects, "/models/sentiment-fp32/info")
    assert answer["model_type"]["classifier"]["label2id"]["positive"] == 2
    assert answer["model_dtype"] == "fp32"
    _, _, ranker = call(dialects, f"/models/{RANKER}/info")
    assert ranker["model_type"] == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    assert answer["max_batch_tokens"] == answer["max_input_length"] * answer["max_batch_requests"]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {"inputs": TEXTS * 300}, 413, "Validation"),
        ("/embed", {"inputs": LONG}, 413, "Validation"),
        ("/embed", {"inputs": []}, 400, "Empty"),
        ("/embed", {"inputs": 3}, 422, "Validation"),
        ("/embed", b"{", 422, "Validation"),
        ("/embed", {"inputs": TEXTS, "prompt_name": "passage"}, 422, "Validation"),  # the model has no prompts
        ("/embed", {"inputs": TEXTS, "truncation_direction": "Left"}, 422, "Validation"),
        ("/models/sentiment-fp32/embed", {"inputs": TEXTS}, 424, "Backend"),
        ("/models/nothing/embed", {"inputs": TEXTS}, 404, "Validation"),
        ("/predict", {"inputs": TEXTS}, 422, "Validation"),  # a pair
        ("/predict", {"inputs": TEXTS[0], "raw_scores": True}, 422, "Validation"),
        ("/models/sentiment-fp32/rerank", {"query": TEXTS[0], "texts": TEXTS}, 424, "Backend"),
        ("/rerank", {"query": TEXTS[0], "texts": []}, 400, "Empty"),
        ("/rerank", {"query": TEXTS[0], "texts": TEXTS * 1000}, 413, "Validation"),
        ("/rerank", {"query": TEXTS[0], "texts": [LONG]}, 413, "Validation"),
        ("/rerank", {"query": LONG * 30, "texts": TEXTS, "truncate": True}, 422, "Validation"),
        ("/rerank", {"query": TEXTS[0], "texts": TEXTS[0]}, 422, "Validation"),
        ("/rerank", {"texts": TEXTS}, 422, "Validation"),
        ("/rerank", {"query": TEXTS[0], "texts": [*TEXTS, 3]}, 422, "Validation"),
        ("/tokenize", {"inputs": TEXTS}, 424, "Backend"),  # there are two models
    ],
)
def test_errors_have_teis_status_and_error_type(
    path: str, body: Any, status: int, kind: str, dialects: ServeProcess
) -> None:
    answered, _, answer = call(dialects, path, body)
    assert (answered, answer["error_type"]) == (status, kind), answer


@pytest.mark.parametrize("prompt", [{"prompt_name": "query"}, {"prompt_name": "document"}])
def test_a_model_without_prompts_takes_the_empty_ones_of_sentence_transformers(
    prompt: dict[str, str], dialects: ServeProcess
) -> None:
    for name in ("embed", "tokenize"):
        path, body = f"/models/similar-int8/{name}", {"inputs": TEXTS}
        (status, _, answer), (_, _, plain) = call(dialects, path, body | prompt), call(dialects, path, body)
        assert (status, answer) == (200, plain)


def test_a_long_text_is_cut_on_request(dialects: ServeProcess, grpc: Client) -> None:
    status, _, [vector] = call(dialects, "/embed", {"inputs": LONG, "truncate": True, "truncation_direction": "Right"})
    assert status == 200 and np.array_equal(np.float32(vector), grpc.embed("similar-int8", LONG))
