"""Decoders as re-rankers through `hfx serve`: every interface has the scores of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.client import Client
from hfx.errors import RequestRefused
from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints.decoder_rankers import Ranker, write_classifier, write_logit_ranker
from tests.rigs.checkpoints.published import export_random
from tests.rigs.checkpoints.sentence_models import TEXTS
from tests.rigs.clients.dialect_calls import call
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore:A text is longer")]

LOGITS, HEAD = "logits", "head"
QUERY = "the cat in paris?"
FILM = {"prompts": {"film": "find a film"}}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """The library's models, and their folders."""
    writers = {LOGITS: write_logit_ranker, HEAD: write_classifier}
    folders = {name: tmp_path_factory.mktemp(name) for name in writers}
    return {name: (write(folders[name], Ranker(), **FILM), folders[name] / "model") for name, write in writers.items()}


@pytest.fixture(scope="module")
def repository(references: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    options = {LOGITS: {}, HEAD: {"precision": "int8", "cpu_runtime": "native", "max_drop": 0.5}}
    for name, (_, checkpoint) in references.items():
        export_random(checkpoint, folder, name=name, **options[name])
    return folder


@pytest.fixture(scope="module")
def local(repository: Path) -> dict[str, LocalModel]:
    return {name: LocalModel.open(repository, name) for name in (LOGITS, HEAD)}


def found(rows: Any, score: str = "score") -> dict[int, float]:
    return {row["index"]: row[score] for row in rows}


@pytest.mark.parametrize("prompt", [{}, {"prompt_name": "film"}])
def test_rerank_has_the_scores_of_the_library(served: ServeProcess, references: Any, prompt: Any) -> None:
    expected = [references[LOGITS][0].predict([(QUERY, text)], **prompt)[0] for text in TEXTS]
    body = {"query": QUERY, "texts": list(TEXTS), "truncate": True, **prompt}
    status, _, rows = call(served, f"/models/{LOGITS}/rerank", body)
    assert status == 200 and [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    np.testing.assert_allclose([found(rows)[at] for at in range(len(TEXTS))], expected, rtol=0, atol=1e-5)
    logits = np.log(expected) - np.log1p(-np.array(expected))
    _, _, rows = call(served, f"/models/{LOGITS}/rerank", {**body, "raw_scores": True})
    np.testing.assert_allclose([found(rows)[at] for at in range(len(TEXTS))], logits, rtol=0, atol=1e-4)


def test_coheres_api_has_the_scores_of_the_library(served: ServeProcess, references: Any) -> None:
    expected = references[LOGITS][0].rank(QUERY, list(TEXTS))
    body = {"model": LOGITS, "query": QUERY, "documents": list(TEXTS), "top_n": 5}
    status, _, answer = call(served, "/v2/rerank", body)
    assert status == 200 and len(answer["results"]) == 5
    scores = {each["corpus_id"]: each["score"] for each in expected}
    for row in answer["results"]:
        assert row["relevance_score"] == pytest.approx(scores[row["index"]], abs=1e-5)


@pytest.mark.parametrize("name", [LOGITS, HEAD])
@pytest.mark.parametrize("prompt", [{}, {"prompt_name": "film"}, {"prompt": "which {query} has a cat?"}])
def test_served_scores_are_the_local_ones_to_the_bit(
    served: ServeProcess, local: dict[str, LocalModel], name: str, prompt: dict[str, str]
) -> None:
    expected = [local[name].infer({"query": QUERY, "text_input": text, **prompt})["score"] for text in TEXTS]
    for url in ("grpc_url", "http_url"):
        with Client(served.ready[url]) as client:
            ranks = client.rank(name, QUERY, list(TEXTS), **prompt)
        assert {rank.index: rank.score for rank in ranks} == dict(enumerate(expected))
        assert any(rank.truncated_tokens for rank in ranks) and not all(rank.truncated_tokens for rank in ranks)


def test_fields_that_do_not_fit_the_template_are_refused(served: ServeProcess) -> None:
    with Client(served.ready["grpc_url"]) as client:
        for field in ("query", "prompt"):
            fields = {"query": QUERY, field: "the dog " * 9000}
            with pytest.raises(RequestRefused, match=f"{field} has 72000 bytes"):
                client.rank(LOGITS, fields.pop("query"), ["a text"], **fields)
        with pytest.raises(RequestRefused, match="the model's prompts are 'film'"):
            client.rank(LOGITS, QUERY, ["a text"], prompt_name="films")
    status, _, answer = call(served, f"/models/{LOGITS}/tokenize", {"inputs": "a cat", "prompt_name": "film"})
    assert status == 422 and "template" in answer["error"]
