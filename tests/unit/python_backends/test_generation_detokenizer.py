"""The pieces of a text, joined, equal transformers' decode of all its tokens, for every kind of decoder."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hfx.python_backends.generation.detokenizer import Detokenizer
from hfx.python_backends.spaces import clean_up
from tests.rigs.checkpoints.generation_tokenizers import KINDS, LINES, byte_level, random_text, unigram

ROUNDS = 300


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]()


def decoded(tokenizer: Any, ids: list[int], *, clean: bool = False) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return str(tokenizer.clean_up_tokenization(text)) if clean else text


def pieces(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    decoding = detokenizer.open()
    return [*(decoding.push(token_id) for token_id in ids), decoding.finish()]


def random_ids(draw: random.Random, tokenizer: Any, length: int = 30) -> list[int]:
    """Return random ids; the tokenizer has no token for some of them (a model's vocabulary is often padded)."""
    return [draw.randrange(len(tokenizer) + 3) for _ in range(draw.randrange(length))]


def repetitive_ids(draw: random.Random, tokenizer: Any) -> list[int]:
    few = [draw.randrange(len(tokenizer)) for _ in range(3)]
    return [draw.choice(few) for _ in range(draw.randrange(12))]


@pytest.mark.parametrize("clean", [False, True])
def test_pieces_of_any_ids_join_to_the_decoded_whole(tokenizer: Any, clean: bool) -> None:
    detokenizer = Detokenizer(tokenizer.backend_tokenizer, clean)
    draw = random.Random(7)
    for number in range(ROUNDS):
        ids = random_ids(draw, tokenizer) if number % 2 else repetitive_ids(draw, tokenizer)
        expected = decoded(tokenizer, ids, clean=clean)
        assert "".join(pieces(detokenizer, ids)) == expected, ids
        assert detokenizer.decode(ids) == expected


@pytest.mark.parametrize("clean", [False, True])
def test_pieces_of_a_text_join_to_the_decoded_whole(tokenizer: Any, clean: bool) -> None:
    detokenizer = Detokenizer(tokenizer.backend_tokenizer, clean)
    draw = random.Random(8)
    for text in (*LINES, *(random_text(draw) for _ in range(ROUNDS))):
        ids = tokenizer(text)["input_ids"]
        assert "".join(pieces(detokenizer, ids)) == decoded(tokenizer, ids, clean=clean)


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
def test_no_piece_ends_inside_a_character(kind: str) -> None:
    tokenizer = KINDS[kind]()
    detokenizer = Detokenizer(tokenizer.backend_tokenizer)
    ids = tokenizer("a 😀👩‍👧 日本 é!")["input_ids"]
    found = pieces(detokenizer, ids)
    assert len(ids) > 12
    assert not any("\ufffd" in piece for piece in found)
    assert len([piece for piece in found if piece]) > 3


def test_invalid_bytes_are_replaced_as_the_library_does() -> None:
    tokenizer = byte_level()
    table = tokenizer.backend_tokenizer.get_vocab()
    alphabet = [table[letter] for letter in ("Ģ", "ð", "Ł", "â", "Ĥ", "¬", "í", "ł", "ô", "À", "a")]
    detokenizer = Detokenizer(tokenizer.backend_tokenizer)
    draw = random.Random(9)
    for _ in range(3000):
        ids = [draw.choice(alphabet) for _ in range(draw.randrange(9))]
        assert "".join(pieces(detokenizer, ids)) == decoded(tokenizer, ids), ids


def test_text_is_shown_as_soon_as_it_is_decided() -> None:
    tokenizer = unigram()
    ids = tokenizer("Anna went to the market")["input_ids"]
    found = pieces(Detokenizer(tokenizer.backend_tokenizer), ids)
    running = ["".join(found[: i + 1]) for i in range(len(ids))]
    assert running == [decoded(tokenizer, ids[: i + 1]) for i in range(len(ids))]


def test_special_ids_have_no_text() -> None:
    tokenizer = byte_level()
    ids = tokenizer("Anna went")["input_ids"]
    detokenizer = Detokenizer(tokenizer.backend_tokenizer, special_ids=[ids[0]])
    assert detokenizer.decode(ids) == decoded(tokenizer, ids[1:])
    assert "".join(pieces(detokenizer, ids)) == decoded(tokenizer, ids[1:])


def test_added_tokens_that_are_not_special_are_text() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens(["<tool>", "naïve", "é"])
    detokenizer = Detokenizer(tokenizer.backend_tokenizer)
    ids = tokenizer("a <tool> naïve é b")["input_ids"]
    assert "".join(pieces(detokenizer, ids)) == decoded(tokenizer, ids)


def test_spaces_are_cleaned_up_alike_in_pieces_of_any_size() -> None:
    from tokenizers import Tokenizer, decoders, models

    letters = " .'?,ntmsvrex"
    ids = {f"{letter}": i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="x"))
    tokenizer.decoder = decoders.Fuse()
    detokenizer = Detokenizer(tokenizer, cleans_up_spaces=True)
    draw = random.Random(10)
    for number in range(20_000):
        alphabet = letters if number % 2 else " ' nt"
        text = "".join(draw.choice(alphabet) for _ in range(draw.randrange(16)))
        assert "".join(pieces(detokenizer, [ids[letter] for letter in text])) == clean_up(text), text


def test_cleaned_up_text_does_not_wait_for_its_end() -> None:
    tokenizer = unigram()
    ids = tokenizer("a b c d e, a b c d")["input_ids"]
    found = pieces(Detokenizer(tokenizer.backend_tokenizer, cleans_up_spaces=True), ids)
    assert len([piece for piece in found if piece]) >= 8
