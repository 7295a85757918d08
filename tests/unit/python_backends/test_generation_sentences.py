"""Sentences are found in many scripts, and each character of a text is in exactly one of them."""

from __future__ import annotations

import random

import pytest

from hfx.python_backends.generation.documents import sentences
from tests.rigs.checkpoints.generation_tokenizers import LINES, random_text


def found(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    "expected",
    [
        ["One.", " Two!", " Three?", " Four"],
        ["He said so.”", " Then he left.)", " “No!” she cried."],
        ["Wait...", " What?!", " Yes… maybe."],
        ["Mr. Smith met Dr. J. R. Watson in the U.S. Senate at approx. 5 p.m. today.", " Then no. 5 left."],
        ["It costs 3.50 or 1.000.000.", " See example.com for v1.2 of it."],
        ["1. The first point.", " The second.", "\n\n2. Another (see Sec. 4).", " Done."],
        ["That was 1990.", " In section 12.", " The end."],
        ["A heading without a stop\n", "\nThe text begins."],
        ["One line\nand another of the same sentence."],
        ["これは文です。", "次の文！", "「はい。」", "終わり"],
        ["हिन्दी में लिखा।", " दूसरा वाक्य।"],
        ["هل هذا سؤال؟", " نعم."],
        ["Это предложение.", " Вот ещё одно."],
        ["¿Qué?", " ¡Nada!", " Bien."],
        ["no border. here or here.txt, nor...here"],
        ["Smile. 😀 Go on."[:6], " 😀 Go on."],
    ],
)
def test_example_texts_split_into_the_expected_sentences(expected: list[str]) -> None:
    assert found("".join(expected)) == expected


@pytest.mark.parametrize("text", ["", " ", "\n\n\n", "...", "word", ". . .", "\n\nA.\n\n"])
def test_short_texts_lose_no_character(text: str) -> None:
    assert "".join(found(text)) == text
    assert len(found(text)) <= 3


def test_every_character_is_in_one_sentence() -> None:
    draw = random.Random(5)
    for _ in range(3000):
        text = "".join(draw.choice((random_text(draw), draw.choice(LINES), ". ", "\n\n", "?”")) for _ in range(5))
        spans = [*sentences(text)]
        assert "".join(text[start:end] for start, end in spans) == text
        assert all(text[start:end].strip() for start, end in spans) or not text.strip()
