"""64 concurrent callers by every interface, three models and every decoding method get the engine's own texts."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hfx.triton import EmbeddedServer
from tests import zoo
from tests.rigs.clients.generation_requests import Answer, Ask
from tests.rigs.servers.generation_server import DOORS, WRITERS, in_process

pytestmark = pytest.mark.triton

CALLERS = 64
WAYS: dict[str, dict[str, Any]] = {
    "as the model is set up": {},
    "greedy": {"num_beams": 1, "max_tokens": 24},
    "beams": {"num_beams": 4, "length_penalty": 1.5, "max_tokens": 30},
    "sampled": {"num_beams": 1, "do_sample": True, "temperature": 1.5, "seed": 0, "max_tokens": 40},
    "sampled from few": {"num_beams": 1, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 2**64 - 1},
    "stopped": {"num_beams": 1, "stop_words": ["the green", " for ", "d. "], "max_tokens": 40},
    "without repetition": {"num_beams": 1, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "max_tokens": 24},
}


def texts_of(model: str, count: int) -> list[str]:
    if model == "summaries":
        return [example.prompt + example.continuation for example in zoo.heldout("summaries", count)]
    return [example.prompt for example in zoo.heldout("stories" if model == "stories" else "short-summaries", count)]


def mixed_asks() -> list[tuple[str, Ask]]:
    """Return requests to each model with each decoding method through each interface.

    Every request has another text, and sampled requests have a seed.
    """
    combined = list(itertools.product(WAYS.values(), WRITERS, DOORS))
    texts = {model: texts_of(model, len(combined)) for model in WRITERS}
    asks = []
    for number, (way, model, door) in enumerate(combined):
        seed = {"seed": (number * 2**57 + way["seed"]) % 2**64} if "seed" in way else {}
        asks.append((door, Ask(model, texts[model][number], {**way, **seed})))
    return asks


@pytest.fixture(scope="module")
def asks() -> list[tuple[str, Ask]]:
    return mixed_asks()


@pytest.fixture(scope="module")
def expected(writers: Path, asks: list[tuple[str, Ask]]) -> list[Answer]:
    return in_process(writers, [ask for _, ask in asks])


@pytest.fixture(scope="module")
def found(writing_server: EmbeddedServer, asks: list[tuple[str, Ask]]) -> list[Answer]:
    """The answers to 64 callers that begin at the same moment."""
    together = threading.Barrier(CALLERS)

    def call(caller: int) -> dict[int, Answer]:
        together.wait()
        return {i: DOORS[asks[i][0]](writing_server, asks[i][1]) for i in range(caller, len(asks), CALLERS)}

    with ThreadPoolExecutor(CALLERS) as pool:
        answers = dict(pair for part in pool.map(call, range(CALLERS)) for pair in part.items())
    return [answers[number] for number in range(len(asks))]


@pytest.mark.parametrize("door", DOORS)
def test_each_interface_gives_the_texts_of_the_engine_in_process(
    door: str, asks: list[tuple[str, Ask]], found: list[Answer], expected: list[Answer]
) -> None:
    different = [
        f"{ask}\n  in process {right}\n  on Triton  {answer}"
        for (by, ask), answer, right in zip(asks, found, expected, strict=True)
        if by == door and answer != right
    ]
    assert not different, f"{len(different)} answers differ:\n" + "\n".join(different)


def test_the_expected_texts_differ_from_request_to_request(expected: list[Answer]) -> None:
    """If all answers were alike, equality would prove nothing."""
    assert len({answer.text for answer in expected}) > 0.9 * len(expected)
    assert {answer.finish_reason for answer in expected} == {"stop", "length"}
    assert len({answer.output_tokens for answer in expected}) > 10


@pytest.mark.parametrize("door", ["sse", "grpc stream"])
def test_streams_come_in_pieces(door: str, asks: list[tuple[str, Ask]], found: list[Answer]) -> None:
    pieces = [
        len(answer.pieces)
        for (by, ask), answer in zip(asks, found, strict=True)
        if by == door and (ask.settings.get("num_beams") == 1)
    ]
    assert pieces and sum(pieces) > 3 * len(pieces)
