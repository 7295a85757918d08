"""Text ranking through a real Triton and locally, compared with the checkpoint in transformers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.batch.models import Repository, open_model
from hfx.cli import main
from hfx.client import AsyncClient, Client
from hfx.errors import RequestRefused, UsageError
from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.clients.dialect_calls import RANKER, call
from tests.rigs.files.batch_jobs import Opened, output_rows, table
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore:A text is longer")]

QUERY = "the cat in paris?"
TEXTS = ["the cat sat in paris.", "", "a bad film", "the dog ran " * 90, "good?", *(f"a {'b ' * n}" for n in range(70))]
TOLERANCE = 1e-4  # float32 sums in another order


@pytest.fixture(scope="module")
def logits() -> list[float]:
    """The checkpoint's logit of each text, each pair alone."""
    tokenizer, model = tiny_checkpoints.tokenizer(), tiny_checkpoints.cross_encoder()
    pairs = [tokenizer([(QUERY, text)], truncation="longest_first", return_tensors="pt") for text in TEXTS]
    with torch.no_grad():
        return [float(model(**pair).logits) for pair in pairs]


def test_scores_equal_the_checkpoints(grpc: Client, logits: list[float]) -> None:
    raw = grpc.rank(RANKER, QUERY, TEXTS, raw_scores=True)
    assert [each.score for each in sorted(raw, key=lambda each: each.index)] == pytest.approx(logits, abs=TOLERANCE)
    ranks = grpc.rank(RANKER, QUERY, TEXTS)
    assert {each.index: each.score for each in ranks} == pytest.approx(
        dict(enumerate(torch.tensor(logits).sigmoid().tolist())), abs=TOLERANCE
    )
    assert [each.score for each in ranks] == sorted((each.score for each in ranks), reverse=True)
    assert max(logits) - min(logits) > 1  # or they would prove little
    assert {each.index for each in ranks if each.truncated_tokens} == {3, *range(61, 75)}


def test_every_interface_gives_bit_equal_scores(grpc: Client, dialects: ServeProcess, many_tasks: Path) -> None:
    """The scores are computed alone over gRPC, in batches of the front, and in this process."""
    ranks = grpc.rank(RANKER, QUERY, TEXTS)

    async def ask() -> Any:
        async with AsyncClient(dialects.ready["grpc_url"]) as client:
            return await client.rank(RANKER, QUERY, iter(TEXTS))

    assert asyncio.run(ask()) == ranks
    _, _, rows = call(dialects, "/rerank", {"query": QUERY, "texts": TEXTS, "truncate": True})
    assert [(row["index"], row["score"]) for row in rows] == [(each.index, each.score) for each in ranks]
    requests = [{"query": QUERY, "text_input": text} for text in TEXTS]
    local = LocalModel.open(many_tasks, RANKER).infer_all(requests)
    assert [local[each.index]["score"] for each in ranks] == [each.score for each in ranks]


def test_invalid_ranking_requests_are_refused(grpc: Client, dialects: ServeProcess) -> None:
    assert grpc.rank(RANKER, QUERY, []) == []
    with pytest.raises(UsageError, match="one string"):
        grpc.rank(RANKER, QUERY, "a text")
    with pytest.raises(RequestRefused, match="query has 120000 bytes"):
        grpc.rank(RANKER, QUERY * 7000 + "!" * 1000, ["a text"])
    with pytest.raises(UsageError, match="has no input query"):
        grpc.rank("sentiment-fp32", QUERY, ["a text"])
    body = {"query": QUERY, "text_input": "a text", "raw_score": True}
    _, _, answer = call(dialects, f"/v2/models/{RANKER}/generate", body)
    assert "its parameters are raw_scores" in answer["error"]


def test_the_command_line_scores_texts(
    many_tasks: Path, tmp_path: Path, logits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--repository", str(many_tasks)]
    assert main(["infer", RANKER, *TEXTS[:3], "--query", QUERY, "--raw-scores", "--local", *place]) == 0
    assert [float(line) for line in capsys.readouterr().out.split()] == pytest.approx(logits[:3], abs=1e-3)
    data = tmp_path / "data.csv"
    data.write_text("query,text,score\n" + "".join(f"{QUERY},{TEXTS[i]},{logits[i]}\n" for i in (0, 2, 3, 4)))
    assert main(["verify", RANKER, "--data", str(data), "--min", "0.99", *place, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["data"]["value"] == pytest.approx(1) and figures["parity"]["agreement"] == 1


def test_a_batch_job_has_a_column_of_scores(many_tasks: Path, tmp_path: Path, logits: list[float]) -> None:
    source = table(tmp_path / "a.jsonl", [{"text": text, "q": QUERY} for text in TEXTS])
    with open_model(RANKER, Repository(many_tasks, threads=1)) as model:
        opened, options = Opened(model, many_tasks), {"file_name": "out.jsonl", "size": 9}
        opened.run(tmp_path / "two", [source], columns=["text", "query=q"], settings={"raw_scores": [True]}, **options)
        opened.run(tmp_path / "one", [source], settings={"raw_scores": [True], "query": [QUERY]}, **options)
    rows = output_rows(tmp_path / "two" / "out.jsonl")
    assert [row["score"] for row in rows] == pytest.approx(logits, abs=TOLERANCE)
    assert np.array_equal(rows, output_rows(tmp_path / "one" / "out.jsonl"))
