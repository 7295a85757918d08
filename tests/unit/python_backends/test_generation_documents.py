"""Long texts in parts: no text is left out, every part fits, and parts end with sentences where they can."""

from __future__ import annotations

import csv
import random
import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import pytest

from hfx.python_backends.generation.configuration import resolve_config
from hfx.python_backends.generation.documents import parts as divided
from hfx.python_backends.generation.documents import sentences
from hfx.python_backends.generation.prompts import PromptEncoder
from tests.rigs.checkpoints.generation_tokenizers import LINES, byte_level, random_text, unigram
from tests.rigs.engine.generation_models import configuration
from tests.rigs.machine.tiers import DATA, full, needs_data

pytestmark = pytest.mark.slow

BILLSUM = DATA / "billsum" / "billsum-0.csv"


def encoder(tokenizer: Any, room: int, prefix: str = "") -> PromptEncoder:
    backend = tokenizer.backend_tokenizer
    specials = backend.num_special_tokens_to_add(False)
    return PromptEncoder(backend, configuration(max_source=room + specials, max_length=64, prefix=prefix))


@pytest.fixture(scope="module", params=["bart", "t5"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return byte_level("bart") if request.param == "bart" else unigram()


def parts(text: str, measure: Any, overlap: int) -> list[str]:
    return [*divided(text, measure, overlap)]


def letters(texts: Sequence[str]) -> str:
    """Return the text without white space."""
    return "".join("".join(texts).split())


def in_order_without_gaps(found: Sequence[str], text: str) -> bool:
    """Return whether the parts cover the text in order, without gaps other than white space; they may overlap."""
    ends = {0}
    for part in found:
        size = len(part)
        starts = {found.start() for found in re.finditer(f"(?={re.escape(part)})", text)}
        ends = {s + size for s in starts for e in ends if s <= e < s + size or (s > e and not text[e:s].strip())}
    return any(not text[end:].strip() for end in ends)


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_any_text_is_in_parts_that_fit(tokenizer: Any, overlap: int) -> None:
    draw = random.Random(12)
    for _ in range(30):
        pieces = [draw.choice((random_text(draw, 30), draw.choice(LINES), "x" * draw.randrange(90))) for _ in range(9)]
        text = draw.choice((" ", ". ", "\n\n")).join(pieces)
        measure = encoder(tokenizer, draw.choice((24, 40, 90)))
        found = parts(text, measure, overlap)
        assert all(map(measure.fits, found))
        assert in_order_without_gaps(found, text), text
        assert found == parts(text, measure, overlap)


def test_a_text_that_fits_is_its_only_part(tokenizer: Any) -> None:
    text = "  " + LINES[0] + "\n"
    for each in (text, "", " "):
        assert parts(each, encoder(tokenizer, 500), 1) == [each]


def test_parts_begin_and_end_with_sentences() -> None:
    text = " ".join(f"Sentence number {number} is here." for number in range(60))
    found = parts(text, encoder(unigram(), 100), 0)
    assert len(found) > 5
    assert all(part.startswith("Sentence number") and part.endswith("is here.") for part in found)


@pytest.mark.parametrize("overlap", [1, 2])
def test_parts_share_sentences_that_are_short(overlap: int) -> None:
    text = " ".join(f"Number {number}." for number in range(80))
    found = parts(text, encoder(unigram(), 80), overlap)
    for before, after in pairwise(found):
        shared = before.split(". ")[-overlap:]
        assert after.startswith(". ".join(shared))


def test_long_sentences_are_not_shared() -> None:
    sentence = "Anna went from Paris to the market in Berlin and saw the cat on the mat {}."
    text = " ".join(sentence.format(number) for number in range(12))
    room = 3 * encoder(unigram(), 99).lengths([sentence])[0]
    found = parts(text, encoder(unigram(), room), 2)
    assert letters(found) == letters([text])


def test_a_word_that_is_too_long_is_divided_between_tokens(tokenizer: Any) -> None:
    text = "".join(random.Random(13).choice("abcdefgh日😀") for _ in range(3000))
    measure = encoder(tokenizer, 50)
    found = parts(text, measure, 1)
    assert "".join(found) == text
    assert all(map(measure.fits, found))
    assert len(found) < 2.5 * measure.lengths([text])[0] / 50


def test_parts_leave_room_for_the_prefix() -> None:
    tokenizer = unigram()
    measure = encoder(tokenizer, 60, prefix="Anna went from Paris to: ")
    found = parts(" ".join(LINES * 10), measure, 1)
    made = configuration(max_source=61, max_length=64, prefix="Anna went from Paris to: ")
    prompts = [
        PromptEncoder(tokenizer.backend_tokenizer, made).encode(part, resolve_config({}, made)) for part in found
    ]
    assert all(prompt.truncated_tokens == 0 for prompt in prompts)


def test_a_character_with_more_tokens_than_fit_is_counted_as_truncated() -> None:
    tokenizer = byte_level("bart")
    measure = encoder(tokenizer, 2)
    found = parts("😀😀", measure, 1)
    assert found == ["😀", "😀"]
    made = configuration(max_source=4, max_length=64)
    assert [measure.encode(part, resolve_config({}, made)).truncated_tokens > 0 for part in found] == [True, True]


@dataclass(frozen=True)
class Deceptive:
    """A measure by which stretches of text have more tokens together than alone: a token a word, where
    eight characters are counted as one, two or no token."""

    room: int

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def ends(self, text: str) -> list[int]:
        return [*range(1, len(text) + 1)]

    def fits(self, text: str) -> bool:
        return len(text) <= 4 * self.room


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_parts_fit_though_stretches_have_more_tokens_together(overlap: int) -> None:
    draw = random.Random(14)
    for _ in range(100):
        words = ["".join(draw.choices("abc", k=draw.randrange(1, 6))) + draw.choice((" ", ". ")) for _ in range(60)]
        text = "".join(words).replace(". ", ". A")
        measure = Deceptive(draw.randrange(5, 40))
        found = parts(text, measure, overlap)
        assert all(map(measure.fits, found))
        assert in_order_without_gaps(found, text)


@pytest.mark.parametrize("piece", ["a", " ", "a ", "a. ", "\n", "日", ".”", "1.\n"])
def test_huge_texts_of_one_kind_are_divided(piece: str) -> None:
    text = piece * 20_000
    assert letters(parts(text, encoder(byte_level("bart"), 500), 0)) == letters([text])


@needs_data
@pytest.mark.parametrize("room", [full(256), 1022])
def test_bills_are_divided_between_sentences(tokenizer: Any, room: int) -> None:
    with BILLSUM.open(encoding="utf-8") as file:
        bills = [row["text"] for row in csv.DictReader(file)][:20]
    measure = encoder(tokenizer, room)
    whole = 0
    for bill in bills:
        found = parts(bill, measure, 1)
        assert all(map(measure.fits, found))
        assert in_order_without_gaps(found, bill)
        assert len(found) <= 1 + 2.2 * measure.lengths([bill])[0] / room
        spans = [*sentences(bill)]
        if all(measure.fits(bill[start:end].strip()) for start, end in spans):
            ends = {bill[:end].strip()[-60:] for _, end in spans}
            assert all(part[-60:] in ends for part in found)
            whole += 1
    assert whole > 5 or room < 1000


class Stopped(Exception):
    pass


@pytest.mark.parametrize("piece", ["a", "a ", "a. ", "\n", "One sentence. "])
def test_a_division_can_be_stopped_at_any_time(piece: str) -> None:
    """The work has checkpoints for every kind of text: at least one for each 2**17 characters."""
    calls = 0

    def checkpoint() -> None:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise Stopped

    with pytest.raises(Stopped):
        [*divided(piece * (2**20 // len(piece)), encoder(byte_level("bart"), 500), 0, checkpoint)]


def test_parts_of_a_document_are_made_lazily() -> None:
    calls = 0

    def checkpoint() -> None:
        nonlocal calls
        calls += 1

    text = " ".join(LINES * 2000)
    made = divided(text, encoder(byte_level("bart"), 500), 1, checkpoint)
    next(made)
    first = calls
    assert len([*made]) > 50
    assert calls > 20 * first


@pytest.mark.parametrize("piece", ["x", "x ", "x\n", "One sentence. "])
def test_memory_does_not_grow_with_the_text(piece: str) -> None:
    text = piece * (2**19 // len(piece))
    measure = encoder(byte_level("bart"), 500)
    tracemalloc.start()
    try:
        for _ in islice(divided(text, measure, 1), 100):
            pass
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text) + 2**20
    finally:
        tracemalloc.stop()
