"""Text that tokens cut into bytes: every piece on the wire is whole characters, and all together are the text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hfx.triton import EmbeddedServer
from tests.triton.generation_asks import Answer, Ask
from tests.triton.generation_rig import DOORS, RECITAL, STREAMS, in_process
from tests.triton.reciting import VERSE, Recital

pytestmark = pytest.mark.triton

# Where a recital begins and ends moves with the prompt, so that each character is cut at either end by some.
PROMPTS = [*("a" * length for length in range(1, 17)), "👩‍👩‍👧‍👦", "日本語e\u0301", "عולם", "\u0301"]
BROKEN = "\ufffd"
STOPS = {
    "a family": "👩‍👩‍👧‍👦",
    "half a family": "👩‍👧",
    "a joiner": "\u200d",
    "a flag": "🇫🇷",
    "half a flag": "🇩",
    "two halves of flags": "🇷🇩",
    "Chinese": "中文也",
    "a mark of a letter": "\u0301",
    "a letter with its marks": "o\u0302\u0323",
    "right to left": "עולם",
    "a mark of direction": "\u202b",
    "four bytes": "𝔫",
    "a key": "1️⃣",
    "all of a line": VERSE[40:150],
}


def ask(prompt: str, tokens: int, **settings: object) -> Ask:
    return Ask(RECITAL, prompt, {"max_tokens": tokens, **settings})


def answers(server: EmbeddedServer, door: str, asks: list[Ask]) -> list[Answer]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda each: DOORS[door](server, each), asks))


@pytest.mark.parametrize("door", DOORS)
def test_characters_that_tokens_cut_arrive_whole(door: str, writing_server: EmbeddedServer, recital: Recital) -> None:
    asks = [ask(prompt, 400 + 3 * number) for number, prompt in enumerate(PROMPTS)]
    for each, answer in zip(asks, answers(writing_server, door, asks), strict=True):
        assert answer.text == recital.text(str(each.text), int(each.settings["max_tokens"]))
        assert BROKEN not in answer.text.strip(BROKEN)


def test_the_recital_is_torture(recital: Recital) -> None:
    """Its characters have several tokens, and some recital begins or ends within one."""
    texts = [recital.text(prompt, 400 + 3 * number) for number, prompt in enumerate(PROMPTS)]
    assert all(len(text) < 350 for text in texts)
    assert any(text[0] == BROKEN for text in texts) and any(text[-1] == BROKEN for text in texts)


@pytest.mark.parametrize("door", STREAMS)
def test_pieces_hold_no_more_than_what_is_decided(door: str, writing_server: EmbeddedServer, recital: Recital) -> None:
    """A text that has no broken character has none in any piece, and does not wait for its end."""
    answer = answers(writing_server, door, [ask("a", 600)])[0]
    assert answer.text.rstrip(BROKEN).count(BROKEN) == recital.text("a", 600).rstrip(BROKEN).count(BROKEN)
    assert len([piece for piece in answer.pieces if piece]) > 5  # pieces that wait anyway are joined


@pytest.mark.parametrize("door", STREAMS)
def test_bytes_that_are_no_text_are_streamed_as_they_are_decoded_at_once(
    door: str, writing_server: EmbeddedServer, writers: Path
) -> None:
    asks = [ask("a" * n, 150, do_sample=True, temperature=(4.0, 12.0, 100.0)[n % 3], seed=n) for n in range(1, 25)]
    found = answers(writing_server, door, asks)
    assert found == in_process(writers, asks)
    assert sum(answer.text.count(BROKEN) for answer in found) > 500
    assert sum(any(ord(letter) > 0xFFFF for letter in answer.text) for answer in found) > 5


@pytest.mark.parametrize("stop", STOPS.values(), ids=list(STOPS))
def test_a_stop_word_ends_the_text_wherever_tokens_cut_it(
    stop: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    whole = recital.text("a", 1000)
    first = whole.index(stop)
    for door in ("sse", "grpc stream", "gRPC infer"):
        answer = answers(writing_server, door, [ask("a", 1000, stop_words=["never said", stop])])[0]
        assert answer.text == whole[:first] and answer.finish_reason == "stop"
        assert answer.output_tokens < 1000


def test_no_stop_word_that_only_begins_is_lost(writing_server: EmbeddedServer, recital: Recital) -> None:
    """Each is begun again and again and never finished: what waited for its end is text."""
    stops = [f"{word}!" for word in STOPS.values()] + ["👩‍👩‍👧‍👧", "🇫🇸", "\u0301\u0301"]
    answer = answers(writing_server, "sse", [ask("a", 900, stop_words=stops)])[0]
    assert answer.text == recital.text("a", 900) and answer.finish_reason == "length"
