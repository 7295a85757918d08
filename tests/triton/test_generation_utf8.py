"""Characters that tokens cut: every piece on the wire holds whole characters, and together they are the text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.reciting_generator import Recital
from tests.rigs.clients.generation_requests import Answer, Ask
from tests.rigs.servers.generation_server import DOORS, RECITAL, STREAMS, in_process

pytestmark = pytest.mark.triton

# Where a recital begins and ends moves with the prompt, so that each character is cut at either end by some.
PROMPTS = [*("a" * length for length in range(1, 17)), "👩‍👩‍👧‍👦", "日本語e\u0301", "עולם", "\u0301"]
BROKEN = "\ufffd"
# Half a family, half a flag, two halves of flags, a mark of a letter, right to left, four bytes.
STOPS = ["👩‍👧", "🇩", "🇷🇩", "\u0301", "עולם", "𝔫"]


def ask(prompt: str, tokens: int, **settings: object) -> Ask:
    return Ask(RECITAL, prompt, {"max_tokens": tokens, **settings})


def answers(server: EmbeddedServer, door: str, asks: list[Ask]) -> list[Answer]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda each: DOORS[door](server, each), asks))


@pytest.mark.parametrize("door", DOORS)
def test_characters_that_tokens_cut_arrive_whole(door: str, writing_server: EmbeddedServer, recital: Recital) -> None:
    asks = [ask(prompt, 400 + 3 * number) for number, prompt in enumerate(PROMPTS)]
    expected = [recital.text(prompt, 400 + 3 * number) for number, prompt in enumerate(PROMPTS)]
    assert any(text[0] == BROKEN for text in expected) and any(text[-1] == BROKEN for text in expected)
    found = answers(writing_server, door, asks)
    assert [answer.text for answer in found] == expected
    assert not any(BROKEN in text.strip(BROKEN) for text in expected)
    if door in STREAMS:  # text does not wait for its end
        (alone,) = answers(writing_server, door, [ask("a", 600)])
        assert len([piece for piece in alone.pieces if piece]) > 1


def test_bytes_that_are_no_text_are_streamed_as_they_are_decoded_at_once(
    writing_server: EmbeddedServer, writers: Path
) -> None:
    asks = [ask("a" * n, 150, do_sample=True, temperature=(4.0, 12.0, 100.0)[n % 3], seed=n) for n in range(1, 25)]
    expected = in_process(writers, asks)
    for door in STREAMS:
        assert answers(writing_server, door, asks) == expected, door
    assert sum(answer.text.count(BROKEN) for answer in expected) > 500


@pytest.mark.parametrize("door", ["sse", "grpc stream", "gRPC infer"])
def test_a_stop_word_ends_the_text_wherever_tokens_cut_it(
    door: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    whole = recital.text("a", 1000)
    asks = [ask("a", 1000, stop_words=[f"{stop}!", stop]) for stop in STOPS]
    for stop, answer in zip(STOPS, answers(writing_server, door, asks), strict=True):
        assert (answer.text, answer.finish_reason) == (whole[: whole.index(stop)], "stop")
        assert answer.output_tokens < 1000
