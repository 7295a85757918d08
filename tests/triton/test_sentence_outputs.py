"""Other models of sentence-transformers through `hfx serve`: several labels; sparse, static and token vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.batch.models import Repository, open_model
from hfx.batch.rows import labels_of
from hfx.cli import main
from hfx.client import Client
from hfx.errors import UsageError
from tests.rigs.checkpoints.published import export_random
from tests.rigs.checkpoints.sentence_models import (
    TEXTS,
    Recipe,
    normalize,
    pooling,
    splade,
    static_embedding,
    token_mask,
    write_cross_encoder,
    write_embedder,
    write_multi_vector_encoder,
    write_router,
    write_sparse_encoder,
)
from tests.rigs.clients.dialect_calls import call
from tests.rigs.machine.tiers import thinned
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore:A text is longer")]

PAIRS, LABELS = "pairs", 3
SPARSE, DENSE, TOKENS, STATIC, ROUTED = "sparse", "dense", "tokens", "static", "routed"
SHORT = list(TEXTS[:6])
SCORED = [(TEXTS[(3 * i) % 5], text) for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """The library's models, and their folders."""
    folders = {name: tmp_path_factory.mktemp(name) for name in (PAIRS, SPARSE, DENSE, TOKENS, STATIC, ROUTED)}
    prompted = {"prompts": {"query": "the dog: "}}
    made = {
        PAIRS: write_cross_encoder(folders[PAIRS], Recipe((), prompted), LABELS),
        SPARSE: write_sparse_encoder(folders[SPARSE], Recipe((splade(),))),
        DENSE: write_embedder(folders[DENSE], Recipe((pooling("mean"),))),
        TOKENS: write_multi_vector_encoder(folders[TOKENS], Recipe((token_mask(),), prompted)),
        STATIC: static_embedding(folders[STATIC] / "model", normalize, **prompted),
        ROUTED: write_router(folders[ROUTED], Recipe((splade(),))),
    }
    return {name: (model, folders[name] / "model") for name, model in made.items()}


@pytest.fixture(scope="module")
def repository(references: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for name, (_, checkpoint) in references.items():
        export_random(checkpoint, folder, name=name)
    return folder


def predicted(references: dict[str, Any], **options: Any) -> Any:
    return np.array([references[PAIRS][0].predict([pair], **options)[0] for pair in SCORED])


def test_predict_has_the_scores_of_the_library(client: Client, references: dict[str, Any]) -> None:
    found = client.predict(PAIRS, SCORED)
    np.testing.assert_allclose(found, predicted(references), rtol=1e-5, atol=1e-5)
    softmaxed = client.predict(PAIRS, SCORED, apply_softmax=True, prompt_name="query")
    expected = predicted(references, apply_softmax=True, prompt_name="query")
    np.testing.assert_allclose(softmaxed, expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(np.concatenate([client.predict(PAIRS, [pair]) for pair in SCORED]), found)
    assert client.predict(PAIRS, []).shape == (0, LABELS)
    with pytest.raises(UsageError, match="3 labels"):
        client.rank(PAIRS, "a", ["b"])
    with pytest.raises(UsageError, match="not a pair"):
        client.predict(PAIRS, ["ab"])  # type: ignore[list-item]


def test_other_apis_have_the_labels_and_scores_of_predict(served: ServeProcess, references: dict[str, Any]) -> None:
    raw, softmaxed = predicted(references), predicted(references, apply_softmax=True)
    pairs = [list(pair) for pair in SCORED]
    status, _, answer = call(served, f"/models/{PAIRS}/predict", {"inputs": pairs})
    assert status == 200
    for row, scores in zip(answer, softmaxed, strict=True):
        assert [each["label"] for each in row] == [f"LABEL_{at}" for at in np.argsort(-scores)]
        assert [each["score"] for each in row] == pytest.approx(np.sort(scores)[::-1], abs=1e-5)
    _, _, one = call(served, f"/models/{PAIRS}/predict", {"inputs": pairs[0], "raw_scores": True})
    assert [each["score"] for each in one] == pytest.approx(np.sort(raw[0])[::-1], abs=1e-5)
    body = {"inputs": {"query": SCORED[0][0], "texts": [SCORED[0][1]]}}
    assert call(served, f"/models/{PAIRS}", body)[2] == [one]
    prompted = torch.tensor(references[PAIRS][0].predict(SCORED[:1], prompt_name="query")[0])
    [row] = call(served, f"/models/{PAIRS}", {**body, "parameters": {"prompt_name": "query"}})[2]
    assert [each["score"] for each in row] == pytest.approx(prompted.sort(descending=True)[0].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("rerank", {"query": "a", "texts": ["b"]}, 422),
        ("v1/rerank", {"query": "a", "documents": ["b"]}, 400),
        ("v2/rerank", {"query": "a", "documents": ["b"]}, 400),
        ("score", {"text_1": "a", "text_2": "b"}, 400),
        ("predict", {"inputs": "a"}, 422),
        ("predict", {"inputs": []}, 400),
        ("predict", {"inputs": [["a", "b", "c"]]}, 422),
        ("predict", {"inputs": [["a", "b"], "c"]}, 422),
        ("predict", {"inputs": ["a", 3]}, 422),
    ],
)
def test_invalid_requests_to_a_multi_label_cross_encoder_are_refused(
    path: str, body: Any, status: int, served: ServeProcess
) -> None:
    answered, _, answer = call(served, f"/models/{PAIRS}/{path}", body)
    assert answered == status, answer


def test_the_command_line_has_all_scores(
    repository: Path, references: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["infer", PAIRS, SCORED[0][1], "--query", SCORED[0][0], "--local", "--repository", str(repository)]
    assert main([*command, "--apply-softmax", "--json"]) == 0
    expected = predicted(references, apply_softmax=True)[0]
    assert json.loads(capsys.readouterr().out)["results"][0]["score"] == pytest.approx(expected, abs=1e-5)
    assert main(command) == 0
    assert len(capsys.readouterr().out.split()) >= LABELS
    assert main(["infer", TOKENS, "the cat", "--local", "--repository", str(repository)]) == 0
    assert "4 vectors of 32 numbers" in capsys.readouterr().out


def test_static_vectors_are_those_of_the_library(
    client: Client, served: ServeProcess, references: dict[str, Any]
) -> None:
    encode = references[STATIC][0].encode
    for chosen in ({}, {"prompt_name": "query"}):
        expected = np.stack([encode([text], **chosen)[0] for text in TEXTS])
        assert expected.any(axis=1).tolist() == [bool(text or chosen) for text in TEXTS]
        vectors = client.embed(STATIC, TEXTS, **chosen)  # type: ignore[arg-type]
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
        status, _, answer = call(served, f"/models/{STATIC}/embed", {"inputs": SHORT, **chosen})
        assert status == 200 and np.array_equal(np.float32(answer), vectors[: len(SHORT)])
    status, _, answer = call(served, f"/models/{STATIC}/v1/embeddings", {"input": SHORT[2:], "model": STATIC})
    assert status == 200 and len(answer["data"]) == len(SHORT[2:])


def test_sparse_vectors_list_the_nonzero_values(
    client: Client, served: ServeProcess, references: dict[str, Any]
) -> None:
    model = references[SPARSE][0]
    expected = np.stack([model.encode([text], convert_to_sparse_tensor=False)[0].numpy() for text in SHORT])
    vectors = client.embed(SPARSE, SHORT)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    status, _, answer = call(served, f"/models/{SPARSE}/embed_sparse", {"inputs": SHORT, "truncate": True})
    assert status == 200 and any(len(row) < expected.shape[1] for row in answer)
    for row, vector in zip(answer, vectors, strict=True):
        assert [each["index"] for each in row] == np.flatnonzero(vector).tolist()
        assert [each["value"] for each in row] == vector[vector != 0].tolist()
    assert call(served, f"/models/{SPARSE}/embed_sparse", {"inputs": SHORT[0]})[2] == answer[:1]
    assert call(served, f"/models/{SPARSE}/info")[2]["model_type"] == {"embedding": {"pooling": "splade-max"}}


def test_vectors_of_a_router_equal_those_of_the_library(
    client: Client, served: ServeProcess, references: dict[str, Any]
) -> None:
    model = references[ROUTED][0]
    for chosen, encode in (({"prompt_name": "query"}, model.encode_query), ({}, model.encode_document)):
        expected = np.stack([encode([text], convert_to_sparse_tensor=False)[0].numpy() for text in TEXTS])
        vectors = client.embed(ROUTED, TEXTS, **chosen)  # type: ignore[arg-type]
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
        status, _, answer = call(served, f"/models/{ROUTED}/embed_sparse", {"inputs": SHORT, **chosen})
        assert status == 200
        for row, vector in zip(answer, vectors[: len(SHORT)], strict=True):
            assert {each["index"]: each["value"] for each in row} == {i: v for i, v in enumerate(vector.tolist()) if v}


@pytest.mark.parametrize("path", ["/embed_all", f"/models/{TOKENS}/embed_all"])
def test_token_vectors_equal_those_of_the_library(
    path: str, client: Client, served: ServeProcess, references: dict[str, Any]
) -> None:
    encode = references[TOKENS][0].encode
    for chosen in ({}, {"prompt_name": "query"}):
        expected = [encode([text], **chosen)[0].numpy() for text in SHORT]
        vectors = client.embed_tokens(TOKENS, SHORT, **chosen)  # type: ignore[arg-type]
        status, _, answer = call(served, path, {"inputs": SHORT, **chosen})
        assert status == 200 and len({len(rows) for rows in answer}) > 3
        for rows, found, own in zip(answer, vectors, expected, strict=True):
            assert np.array_equal(np.float32(rows), found) and found.shape == own.shape
            np.testing.assert_allclose(found, own, rtol=0, atol=1e-5)
        assert call(served, path, {"inputs": SHORT[3], **chosen})[2] == answer[3:4]
        pooled = call(served, "/pooling", {"model": TOKENS, "input": SHORT, "task": "token_embed", **chosen})[2]["data"]
        assert [each["data"] for each in pooled] == answer
    with pytest.raises(UsageError, match="embed_tokens"):
        client.embed(TOKENS, SHORT)
    with pytest.raises(UsageError, match=r"embed\(\)"):
        client.embed_tokens(DENSE, SHORT)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"/models/{DENSE}/embed_all", {"inputs": SHORT}, 424),
        (f"/models/{TOKENS}/embed_sparse", {"inputs": SHORT}, 424),
        (f"/models/{TOKENS}/embed", {"inputs": SHORT}, 422),
        (f"/models/{TOKENS}/v1/embeddings", {"inputs": SHORT}, 400),
        (f"/models/{TOKENS}", {"inputs": SHORT}, 400),
        ("/embed_all", {"inputs": TEXTS[6]}, 413),
        (f"/models/{PAIRS}/pooling", {"input": SHORT}, 400),
        (f"/models/{TOKENS}/pooling", {"input": SHORT, "task": "embed"}, 400),
        (f"/models/{DENSE}/embed_sparse", {"inputs": SHORT}, 424),
        (f"/models/{PAIRS}/embed_sparse", {"inputs": SHORT}, 424),
        ("/embed_sparse", {"inputs": SHORT}, 424),  # there are two
        (f"/models/{SPARSE}/embed_sparse", {"inputs": []}, 400),
        (f"/models/{SPARSE}/embed_sparse", {"inputs": 3}, 422),
        (f"/models/{SPARSE}/embed_sparse", {"inputs": TEXTS[6]}, 413),
        (f"/models/{SPARSE}/embed_sparse", {"inputs": SHORT, "normalize": True}, 422),
        (f"/models/{SPARSE}/embed_sparse", {"inputs": ["a"] * 600}, 413),
    ],
)
def test_the_wrong_kind_of_embedding_is_refused(path: str, body: Any, status: int, served: ServeProcess) -> None:
    answered, _, answer = call(served, path, body)
    assert answered == status, answer


@pytest.mark.parametrize("name", thinned([PAIRS, SPARSE, TOKENS, STATIC, ROUTED]))
def test_answers_are_verified_in_process_and_on_the_server(name: str, repository: Path, served: ServeProcess) -> None:
    for place in ([], ["--url", served.ready["grpc_url"].removeprefix("grpc://")]):
        assert main(["verify", name, "--repository", str(repository), *place]) == 0


@pytest.mark.parametrize(("name", "reason"), [(PAIRS, "several labels"), (TOKENS, "each token")])
def test_batch_jobs_have_one_answer_a_row(name: str, reason: str, repository: Path) -> None:
    with open_model(name, Repository(repository)) as model, pytest.raises(UsageError, match=reason):
        labels_of(model, {})
