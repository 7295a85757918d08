"""Prompts equal those of the checkpoint's tokenizer; text that does not fit is counted or refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hfx.python_backends.engine.request import Request
from hfx.python_backends.errors import DoesNotFit, InvalidRequest, ModelDamaged
from hfx.python_backends.generation.configuration import resolve_config
from hfx.python_backends.generation.prompts import COUNTED, PromptEncoder
from hfx.python_backends.inputs import LONGEST_TEXT
from tests.rigs.checkpoints.generation_tokenizers import LINES, byte_level, random_text, unigram
from tests.rigs.engine.generation_models import configuration

TOKENIZERS = {"bart": lambda: byte_level("bart"), "t5": unigram}
LONG = " ".join(LINES * 40)


def encode(tokenizer: Any, text: str | bytes, fields: dict[str, Any] | None = None, **changed: Any) -> Request:
    made = configuration(**changed)
    return PromptEncoder(tokenizer.backend_tokenizer, made).encode(text, resolve_config(fields or {}, made))


def truncated(tokenizer: Any, text: str, length: int) -> tuple[int, ...]:
    return tuple(tokenizer(text, truncation=True, max_length=length)["input_ids"])


# Texts for an encoder


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("length", [3, 17, 64])
def test_source_ids_are_those_of_the_tokenizer_with_truncation(kind: str, length: int) -> None:
    tokenizer = TOKENIZERS[kind]()
    draw = random.Random(6)
    for text in ("", " ", *LINES, LONG, *(random_text(draw) for _ in range(200))):
        expected = truncated(tokenizer, text, length)
        whole = tokenizer(text)["input_ids"]
        tokenizer.backend_tokenizer.no_truncation()
        prompt = encode(tokenizer, text, max_source=length)
        assert prompt.prompt == expected
        assert prompt.truncated_tokens == max(0, len(whole) - length)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_huge_text_has_the_ids_of_its_beginning(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    expected = truncated(tokenizer, LONG * 4, 64)
    tokenizer.backend_tokenizer.no_truncation()
    huge = LONG * 1000  # 13 MB
    prompt = encode(tokenizer, huge, max_source=64)
    assert prompt.prompt == expected
    assert prompt.truncated_tokens > 10_000


def test_a_word_at_the_end_of_what_is_read_has_the_tokens_of_the_whole_word() -> None:
    tokenizer = unigram()
    cases = [
        (" " * (COUNTED - before) + "market Berlin weather", length) for before in range(9) for length in (3, 4, 5)
    ]
    expected = [truncated(tokenizer, text, length) for text, length in cases]
    assert [encode(tokenizer, text, max_source=length).prompt for text, length in cases] == expected


def test_the_prefix_goes_before_the_text_and_is_counted() -> None:
    tokenizer = unigram()
    prompt = encode(tokenizer, LINES[0], max_source=64, prefix="Anna went: ")
    assert prompt.prompt == tuple(tokenizer("Anna went: " + LINES[0])["input_ids"])
    assert encode(tokenizer, LINES[0].encode(), max_source=64, prefix="Anna went: ") == prompt


def test_a_text_that_may_not_be_cut_is_refused_with_the_numbers() -> None:
    tokenizer = unigram()
    whole = len(tokenizer(LINES[0])["input_ids"])
    with pytest.raises(DoesNotFit) as caught:
        encode(tokenizer, LINES[0], {"long": "error"}, max_source=whole - 1)
    assert (caught.value.needed, caught.value.available) == (whole, whole - 1)
    assert encode(tokenizer, LINES[0], {"long": "error"}, max_source=whole).truncated_tokens == 0


def test_a_model_without_room_for_a_text_is_refused() -> None:
    with pytest.raises(ModelDamaged, match="take 2"):
        encode(byte_level("bart"), "a", max_source=2)


# Texts to continue


def test_prompt_ids_are_those_of_the_tokenizer() -> None:
    tokenizer = byte_level()
    for text in (" ", *LINES):
        assert encode(tokenizer, text, max_length=1024).prompt == tuple(tokenizer(text)["input_ids"])


def test_an_empty_text_begins_with_bos() -> None:
    tokenizer = byte_level()
    assert encode(tokenizer, "", bos_token_id=0).prompt == (0,)
    with pytest.raises(InvalidRequest, match="at least one token"):
        encode(tokenizer, "")


def test_text_and_new_tokens_share_the_positions() -> None:
    tokenizer = byte_level()
    count = len(tokenizer(LINES[0])["input_ids"])
    assert encode(tokenizer, LINES[0], max_length=count + 9).settings.max_tokens == 9
    assert encode(tokenizer, LINES[0], {"max_tokens": 9}, max_length=count + 9).prompt
    assert encode(tokenizer, LINES[0], {"max_tokens": 4}, max_length=count + 9).settings.max_tokens == 4
    with pytest.raises(DoesNotFit) as caught:
        encode(tokenizer, LINES[0], {"max_tokens": 10}, max_length=count + 9)
    assert (caught.value.needed, caught.value.available) == (count + 10, count + 9)
    assert f"may have {count - 1} beside 10 new ones" in str(caught.value)
    with pytest.raises(DoesNotFit) as caught:
        encode(tokenizer, LINES[0], max_length=count)
    assert (caught.value.needed, caught.value.available) == (count + 1, count)
    with pytest.raises(DoesNotFit, match="beside 5 new ones"):
        encode(tokenizer, LINES[0], {"min_tokens": 5}, max_length=count + 4)


def test_of_a_text_that_may_be_cut_the_last_tokens_are_kept() -> None:
    tokenizer = byte_level()
    whole = tuple(tokenizer(LONG)["input_ids"])
    prompt = encode(tokenizer, LONG, {"long": "truncate", "max_tokens": 20}, max_length=64)
    assert prompt.prompt == whole[-44:]
    assert prompt.truncated_tokens == len(whole) - 44
    assert prompt.settings.max_tokens == 20
    assert encode(tokenizer, LINES[0], {"long": "truncate", "max_tokens": 2}, max_length=64).truncated_tokens == 0


def test_a_default_max_length_limits_prompt_and_answer_together() -> None:
    tokenizer = byte_level()
    count = len(tokenizer(LINES[0])["input_ids"])
    lengths = {"max_length": 1024, "default_max_length": count + 9, "defaults": {"max_tokens": count + 8}}
    assert encode(tokenizer, LINES[0], **lengths).settings.max_tokens == 9
    assert encode(tokenizer, LINES[0], {"max_tokens": 40}, **lengths).settings.max_tokens == 40
    with pytest.raises(DoesNotFit) as caught:
        encode(tokenizer, LINES[0] * 2, **lengths)
    assert caught.value.available == count + 9
    half = encode(tokenizer, LINES[0] * 2, {"long": "truncate"}, **lengths)
    assert (len(half.prompt), half.settings.max_tokens) == (count + 9 - (count + 9) // 2, (count + 9) // 2)


def test_special_tokens_stay_where_a_text_to_continue_is_cut() -> None:
    tokenizer = byte_level("bart")
    tokenizer.truncation_side = "left"
    expected = truncated(tokenizer, LONG, 44)
    tokenizer.backend_tokenizer.no_truncation()
    assert encode(tokenizer, LONG, {"long": "truncate", "max_tokens": 20}, max_length=64).prompt == expected


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_text_without_special_tokens_has_their_places_for_itself(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    whole = tuple(tokenizer(LONG, add_special_tokens=False)["input_ids"])
    bare = {"add_special_tokens": False, "long": "truncate"}
    source = encode(tokenizer, LONG, bare, max_source=64)
    assert (source.prompt, source.truncated_tokens) == (whole[:64], len(whole) - 64)
    continued = encode(tokenizer, LONG, bare | {"max_tokens": 20}, max_length=64)
    assert (continued.prompt, continued.truncated_tokens) == (whole[-44:], len(whole) - 44)
    count = len(tokenizer(LINES[0], add_special_tokens=False)["input_ids"])
    assert len(encode(tokenizer, LINES[0], {"add_special_tokens": False}, max_length=count + 1).prompt) == count
    with pytest.raises(DoesNotFit):
        encode(tokenizer, LINES[0], max_length=count + 1)


def test_a_text_has_no_room_beside_too_many_new_tokens_and_special_ones() -> None:
    tokenizer = byte_level("bart")
    with pytest.raises(DoesNotFit):
        encode(tokenizer, "a", {"long": "truncate", "max_tokens": 62}, max_length=64)
    assert len(encode(tokenizer, "", {"long": "truncate", "max_tokens": 62}, max_length=64).prompt) == 2


def test_a_huge_text_to_continue_has_the_ids_of_its_end() -> None:
    tokenizer = byte_level()
    huge = LONG * 1000
    prompt = encode(tokenizer, huge, {"long": "truncate", "max_tokens": 20}, max_length=64)
    assert prompt.prompt == tuple(tokenizer(LONG * 2)["input_ids"])[-44:]
    with pytest.raises(DoesNotFit):
        encode(tokenizer, huge, max_length=64)


# Texts that can't be taken


@pytest.mark.parametrize("text", [b"\xff\xfe", "\ud800", 3, None, ["a"]])
def test_a_value_that_is_not_text_is_refused(text: Any) -> None:
    for changed in ({}, {"max_source": 64}):
        with pytest.raises(InvalidRequest) as caught:
            encode(byte_level(), text, **changed)
        assert caught.value.field == "text_input"


def test_a_text_above_the_size_limit_does_not_fit() -> None:
    made = configuration(max_source=64)
    prompts = PromptEncoder(unigram().backend_tokenizer, made)
    assert prompts.document("é".encode()) == prompts.document("é") == "é"
    for huge in ("a" * (LONGEST_TEXT + 1), b"a" * (LONGEST_TEXT + 1)):
        with pytest.raises(DoesNotFit):
            prompts.document(huge)
        with pytest.raises(DoesNotFit):
            prompts.encode(huge, resolve_config({}, made))
    with pytest.raises(InvalidRequest):
        prompts.document(b"\xff")
