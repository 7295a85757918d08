"""An answer does not depend on concurrent requests."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.local.encoder import LocalModel
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.rigs.machine.waiting import wait_until

pytestmark = pytest.mark.triton

REQUESTS = 200
THREADS = 16


def mixed_texts() -> list[str]:
    """Return texts from one sentence to more than the model reads, in a fixed random order."""
    sentences = [example.text for example in zoo.heldout("sentiment", REQUESTS)]
    draw = random.Random(0)
    return [" ".join(draw.choices(sentences, k=draw.choice((1, 1, 1, 2, 4, 12)))) for _ in range(REQUESTS)]


@pytest.mark.parametrize("name", ["sentiment-fp32", "sentiment-int8", "sentiment-int8-rows"])
def test_answers_in_a_batch_equal_those_alone_to_the_bit(name: str, server: EmbeddedServer, repository: Path) -> None:
    texts = mixed_texts()
    counts = [(None, 1, 2)[index % 3] for index in range(REQUESTS)]  # requests without the optional input, too
    alone = LocalModel.open(repository, name)
    expected = [alone.infer({"text_input": text, "top_k": k or 1}) for text, k in zip(texts, counts, strict=True)]
    with Client(server.grpc_url) as client, ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(lambda text, k: client.classify(name, text, top_k=k), texts, counts))
    assert [[p.label for p in answer.predictions] for answer in answers] == [row["label"] for row in expected]
    assert [[p.score for p in answer.predictions] for answer in answers] == [row["score"] for row in expected]


def test_mixed_lengths_share_batches(server: EmbeddedServer) -> None:
    texts = mixed_texts()
    before = server.statistics()["entities-fp32_net"]
    with Client(server.grpc_url) as client:
        client.label_tokens("entities-fp32", texts)

    def counted(kind: str) -> int:
        return int(server.statistics()["entities-fp32_net"][kind]) - int(before[kind])

    wait_until(lambda: counted("inference_count") == len(texts))  # Triton counts a request slightly after it answers
    assert counted("execution_count") < len(texts), (
        "nothing was batched"
    )  # how many come together depends on the machine
