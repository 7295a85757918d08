"""ColBERT models through `hfx serve`: vectors of queries and documents, and rankings of texts by these vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.cli import main
from hfx.client import Client
from hfx.errors import UsageError
from tests.rigs.checkpoints.colbert_models import write_pylate, write_stanford
from tests.rigs.checkpoints.published import export_random
from tests.rigs.checkpoints.sentence_models import (
    TEXTS,
    Recipe,
    pooling,
    token_mask,
    write_embedder,
    write_multi_vector_encoder,
)
from tests.rigs.clients.dialect_calls import call
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore:A text is longer")]

PYLATE, STANFORD, LIBRARY, DENSE = "pylate", "stanford", "library", "dense"
WORDS = {"skiplist_words": ["the", "."], "skiplist_tasks": ["query", "document"]}
OF_LIBRARY = Recipe(  # whose vectors have any length
    (token_mask(**WORDS),),
    {"prompts": {"query": "the dog: ", "document": "a cat: "}},
    {"query_expansion": {"strategy": "min", "length": 20}, "document_length": 30},
)
SHORT = list(TEXTS[:6])
RECORDED = json.loads((Path(__file__).parents[1] / "unit/exporter/recorded/pylate.json").read_text())


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The models as sentence-transformers reads them."""
    from sentence_transformers import MultiVectorEncoder

    folder = tmp_path_factory.mktemp("checkpoints")
    made = {PYLATE: write_pylate(folder / PYLATE), STANFORD: write_stanford(folder / STANFORD)}
    models = {name: MultiVectorEncoder(str(path), device="cpu") for name, path in made.items()}
    return models | {LIBRARY: write_multi_vector_encoder(folder / LIBRARY, OF_LIBRARY), "folder": folder}


@pytest.fixture(scope="module")
def repository(references: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    export_random(references["folder"] / PYLATE, folder, name=PYLATE)
    export_random(references["folder"] / STANFORD, folder, name=STANFORD, precision="int8", max_drop=0.5)
    export_random(references["folder"] / LIBRARY / "model", folder, name=LIBRARY)
    write_embedder(references["folder"] / DENSE, Recipe((pooling("mean"),)))
    export_random(references["folder"] / DENSE / "model", folder, name=DENSE)
    return folder


@pytest.mark.parametrize(("name", "tolerance"), [(PYLATE, 1e-5), (STANFORD, 0.2), (LIBRARY, 1e-5)])
def test_token_vectors_equal_those_of_the_library(
    client: Client, references: dict[str, Any], name: str, tolerance: float
) -> None:
    model = references[name]
    for role, encode in (("query", model.encode_query), ("document", model.encode_document)):
        found = client.embed_tokens(name, TEXTS, prompt_name=role)
        expected = [encode([text])[0].numpy() for text in TEXTS]
        assert [each.shape for each in found] == [each.shape for each in expected]
        assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) < tolerance
        alone = [client.embed_tokens(name, [text], prompt_name=role)[0] for text in TEXTS]
        assert all(np.array_equal(a, b) for a, b in zip(alone, found, strict=True))
    if name == LIBRARY:
        return  # a text without a prompt
    plain = client.embed_tokens(name, SHORT)
    assert all(np.array_equal(a, b) for a, b in zip(plain, found[:6], strict=True))


def test_embed_all_and_hfx_infer_take_the_role_of_a_text(
    served: ServeProcess, references: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, rows = call(served, f"/models/{PYLATE}/embed_all", {"inputs": SHORT, "prompt_name": "query"})
    assert status == 200 and [len(row) for row in rows] == [32] * 6
    expected = [each.numpy() for each in references[PYLATE].encode_query(SHORT)]
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    url = served.ready["grpc_url"]
    assert main(["infer", PYLATE, SHORT[0], "--prompt-name", "query", "--url", url, "--json"]) == 0
    np.testing.assert_allclose(json.loads(capsys.readouterr().out)["results"][0]["embedding"], expected[0], atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("rerank", {"query": SHORT[0], "texts": SHORT}),
        ("rerank", {"query": SHORT[0], "texts": SHORT, "raw_scores": True}),
        ("v1/rerank", {"query": SHORT[0], "documents": SHORT, "top_n": 6}),
        ("rerank", {"query": SHORT[0], "documents": SHORT}),
        ("v2/rerank", {"query": SHORT[0], "documents": SHORT}),
        ("score", {"text_1": SHORT[0], "text_2": SHORT}),
        ("score", {"text_1": [SHORT[0]] * 6, "text_2": SHORT}),
    ],
)
def test_every_ranking_api_has_the_scores_of_the_library(
    served: ServeProcess, references: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    model = references[PYLATE]
    expected = model.similarity(model.encode_query([SHORT[0]]), model.encode_document(SHORT))[0].tolist()
    status, _, answer = call(served, f"/models/{PYLATE}/{path}", body)
    assert status == 200, answer
    rows = answer if isinstance(answer, list) else answer.get("results") or answer["data"]
    found = {row["index"]: row.get("score", row.get("relevance_score")) for row in rows}
    assert [found[at] for at in range(6)] == pytest.approx(expected, abs=1e-4)
    if path != "score":
        assert [row["index"] for row in rows] == sorted(range(6), key=lambda at: -expected[at])


@pytest.mark.parametrize("prompt", [None, "the dog: "])
def test_the_client_ranks_as_pylate_and_as_the_front(served: ServeProcess, client: Client, prompt: str | None) -> None:
    """PyLate's MaxSim scores are recorded ones."""
    expected = RECORDED["pylate"]["scores"][prompt or ""]
    ranks = client.rank(PYLATE, SHORT[0], SHORT, prompt=prompt)
    assert [rank.index for rank in ranks] == sorted(range(6), key=lambda at: -expected[at])
    assert [rank.score for rank in ranks] == pytest.approx(sorted(expected, reverse=True), rel=1e-5, abs=1e-5)
    if prompt is None:
        body = {"query": SHORT[0], "texts": SHORT}
        _, _, rows = call(served, f"/models/{PYLATE}/rerank", body)
        assert [(rank.index, rank.score) for rank in ranks] == [(row["index"], row["score"]) for row in rows]
    assert client.rank(PYLATE, SHORT[0], []) == []
    assert client.rank(PYLATE, SHORT[0], ["the dog " * 60])[0].truncated_tokens > 0


def test_vectors_that_are_not_normalized_rank_by_their_products(
    served: ServeProcess, client: Client, references: dict[str, Any]
) -> None:
    model = references[LIBRARY]
    expected = model.similarity(model.encode_query([SHORT[0]]), model.encode_document(SHORT))[0].tolist()
    ranks = client.rank(LIBRARY, SHORT[0], SHORT)
    assert [rank.index for rank in ranks] == sorted(range(6), key=lambda at: -expected[at])
    assert [rank.score for rank in ranks] == pytest.approx(sorted(expected, reverse=True), rel=1e-5)
    _, _, rows = call(served, f"/models/{LIBRARY}/rerank", {"query": SHORT[0], "texts": SHORT})
    assert [(rank.index, rank.score) for rank in ranks] == [(row["index"], row["score"]) for row in rows]


@pytest.mark.parametrize("is_local", [False, True])
def test_the_command_line_ranks(
    served: ServeProcess, repository: Path, is_local: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--local", "--repository", str(repository)] if is_local else ["--url", served.ready["grpc_url"]]
    assert main(["infer", PYLATE, *SHORT, "--query", SHORT[0], "--json", *place]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    expected = RECORDED["pylate"]["scores"][""]
    assert [each["score"] for each in results] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert main(["infer", PYLATE, SHORT[0], "--query", SHORT[0], *place]) == 0
    assert capsys.readouterr().out == f"{expected[0]:.4f}\n"
    assert main(["infer", PYLATE, *SHORT, "--query", SHORT[0], "--prompt", "the dog: ", "--json", *place]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    expected = RECORDED["pylate"]["scores"]["the dog: "]
    assert [each["score"] for each in results] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    for option, said in (("--prompt-name=query", "no input prompt_name"), ("--raw-scores", "no input raw_scores")):
        assert main(["infer", PYLATE, SHORT[0], "--query", SHORT[0], option, *place]) == 2
        assert said in capsys.readouterr().err
    assert main(["infer", DENSE, SHORT[0], "--query", SHORT[0], *place]) == 2
    assert "does not take --query" in capsys.readouterr().err


def test_invalid_ranking_requests_are_refused(served: ServeProcess) -> None:
    body = {"query": "a", "texts": ["b"]}
    for path, sent, message in (
        (f"/models/{DENSE}/rerank", body, "is for feature-extraction"),
        ("/rerank", body, "names no model"),  # two do
        (f"/models/{PYLATE}/rerank", {**body, "prompt_name": "query"}, "queries and documents"),
        (f"/models/{PYLATE}/embed_all", {"inputs": "a", "prompt_name": "passage"}, "'query', 'document'"),
    ):
        status, _, answer = call(served, path, sent)
        assert status in (400, 422, 424) and message in answer["error"]
    with Client(served.ready["grpc_url"]) as client:
        with pytest.raises(UsageError, match="queries and documents"):
            client.rank(PYLATE, "a", ["b"], prompt_name="query")
        with pytest.raises(UsageError, match="no output score"):
            client.rank(DENSE, "a", ["b"])
