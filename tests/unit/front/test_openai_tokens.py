"""Log-probabilities in the types of the clients of OpenAI and text-generation-inference."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from huggingface_hub import TextGenerationOutput, TextGenerationStreamOutput

from hfx.client.results import Piece, Token
from hfx.client.settings import GenerationSettings
from hfx.front.dialects.generated_texts import details, finish_reason, stream_tokens
from hfx.front.dialects.openai_tokens import (
    CompletionLogprobs,
    Echo,
    Shown,
    chat_alternatives,
    chat_logprobs,
    completion_alternatives,
    read_prompts,
    read_shown,
)
from hfx.front.fields import Fields, generation_settings
from hfx.front.refusals import Refusal

HALF, OTHER_HALF = "bytes:\\xc3", "bytes:\\xa9"
TEXT = "café au"
TOKENS = (
    Token(5, "caf", -0.5, False, (Token(5, "caf", -0.5), Token(6, "th", -2.0))),
    Token(7, HALF, -1.0, False, (Token(8, " x", -0.25), Token(9, " x", -3.0))),
    Token(10, OTHER_HALF, -0.125, False, (Token(10, OTHER_HALF, -0.125), Token(1, "</s>", -4.0, True))),
    Token(11, " au", -2.0, False, (Token(12, " de", -0.5), Token(11, " au", -2.0))),
    Token(1, "</s>", -0.75, True, (Token(1, "</s>", -0.75, True), Token(2, ".", -1.0))),
)


def test_a_completion_has_tokens_alternatives_and_offsets() -> None:
    from openai.types.completion_choice import Logprobs

    found = Logprobs.model_validate(CompletionLogprobs(2)(TOKENS), strict=True)
    assert found.tokens == ["caf", HALF, OTHER_HALF, " au", "</s>"]
    assert found.token_logprobs == [-0.5, -1.0, -0.125, -2.0, -0.75]
    assert found.text_offset == [0, 3, 3, 4, 7]
    assert found.top_logprobs and found.top_logprobs[1] == {" x": -0.25, HALF: -1.0}
    assert found.top_logprobs[3] == {" de": -0.5, " au": -2.0}


def test_pieces_of_a_completion_go_on_where_the_one_before_ended() -> None:
    form = CompletionLogprobs(0)
    offsets = [(form(TOKENS[at : at + 1]) or {})["text_offset"] for at in range(len(TOKENS))]
    assert [*chain.from_iterable(offsets)] == [0, 3, 3, 4, 7]
    assert form(()) is None
    without = CompletionLogprobs(0)(TOKENS)
    assert without and without["top_logprobs"] is None


def test_the_first_token_of_an_echo_has_no_log_probabilities() -> None:
    form = CompletionLogprobs(1, echo=True)
    first, rest = form(TOKENS[:2]), form(TOKENS[2:])
    assert first and rest
    assert (first["token_logprobs"], first["top_logprobs"][0]) == ([None, -1.0], None)
    assert first["top_logprobs"][1] == {" x": -0.25, HALF: -1.0}
    assert rest["token_logprobs"] == [-0.125, -2.0, -0.75]


def test_an_echo_is_the_prompt_however_its_tokens_arrive() -> None:
    shown = Shown(echo=True)
    for size in range(1, len(TOKENS) + 1):
        echo = Echo((1, 2), shown)
        parts = [echo(TOKENS[at : at + size]) for at in range(0, len(TOKENS), size)]
        assert "".join((*parts, echo(()))) == TEXT
    echo = Echo("a text", shown)
    assert [echo(TOKENS[:1]), echo(TOKENS[1:]), echo(())] == ["a text", "", ""]
    assert Echo("a text", Shown())(()) == Echo((1,), Shown())(TOKENS) == ""
    half = Echo((1,), shown)
    assert (half(TOKENS[1:2]), half(())) == ("", "\ufffd")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (None, 4)),
        ({"echo": True}, (None, 4)),
        ({"echo": True, "logprobs": 2}, (2, 4)),
        ({"prompt_logprobs": 0}, (0, 4)),
        ({"prompt_logprobs": 5, "echo": True, "logprobs": 2}, (5, 4)),
        ({"prompt_logprobs": 1, "echo": True, "logprobs": 2, "max_tokens": 0}, (2, 1)),
    ],
)
def test_fields_about_the_prompt_become_settings(fields: dict[str, Any], expected: tuple[int | None, int]) -> None:
    body, names = Fields({"max_tokens": 4, **fields}), {}
    shown = read_shown(body, names)
    own = GenerationSettings(logprobs=body.get("logprobs"), max_tokens=body["max_tokens"])
    text, settings = shown.settings(own, "a")
    assert (text, settings.prompt_logprobs, settings.max_tokens) == ("a", *expected)
    assert not {"echo", "prompt_logprobs"} & body.keys()
    text, settings = shown.settings(own, (3, 4))
    assert (text, settings.prompt_token_ids) == ("", (3, 4))
    assert settings.prompt_logprobs == (0 if fields == {"echo": True} else expected[0])


def test_a_max_tokens_of_0_without_anything_about_the_prompt_stays() -> None:
    body = Fields({"max_tokens": 0, "logprobs": 1})
    assert read_shown(body, {}).has_new and body["max_tokens"] == 0


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [(1, 2)]), ([[1], [2, 3]], [(1,), (2, 3)])],
)
def test_prompts_are_texts_or_token_ids(prompt: Any, expected: list[Any]) -> None:
    assert read_prompts(Fields({"prompt": prompt})) == expected


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        [],
        [[]],
        [[1], "a"],
        [1, "a"],
        ["a", 1],
        [True],
        [[1.0]],
        [[2**31]],
        [-1],
        {},
        3,
        [[1]] * 2049,
        [1] * (2**17 + 1),
        [[1] * 2**16, [1], [1] * 2**16],
    ],
)
def test_other_prompts_are_refused_by_name(prompt: Any) -> None:
    with pytest.raises(Refusal) as caught:
        read_prompts(Fields({"prompt": prompt}))
    assert caught.value.param == "prompt"


def test_log_probabilities_of_a_chat_have_bytes() -> None:
    from openai.types.chat.chat_completion import ChoiceLogprobs

    found = ChoiceLogprobs.model_validate(chat_logprobs(TOKENS), strict=True)
    assert found.content and found.refusal is None
    assert bytes(chain.from_iterable(token.bytes or () for token in found.content[:-1])).decode() == TEXT
    assert [(top.token, top.logprob) for top in found.content[0].top_logprobs] == [("caf", -0.5), ("th", -2.0)]
    assert found.content[1].bytes == [0xC3] and chat_logprobs(()) is None


@pytest.mark.parametrize(
    ("fields", "completion", "chat"),
    [
        ({}, None, None),
        ({"logprobs": None, "top_logprobs": None}, None, None),
        ({"logprobs": False}, None, None),
        ({"logprobs": 0}, 0, "logprobs"),
        ({"logprobs": 5}, 5, "logprobs"),
        ({"logprobs": 6}, "logprobs", "logprobs"),
        ({"logprobs": -1}, "logprobs", "logprobs"),
        ({"logprobs": True}, "logprobs", 0),
        ({"logprobs": True, "top_logprobs": 20}, "top_logprobs", 20),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs"),
        ({"logprobs": "2"}, "logprobs", "logprobs"),
    ],
)
def test_alternatives_are_read_or_refused_by_name(fields: dict[str, Any], completion: Any, chat: Any) -> None:
    for read, expected in ((completion_alternatives, completion), (chat_alternatives, chat)):
        if isinstance(expected, str):
            with pytest.raises(Refusal) as caught:
                read(Fields(fields))
            assert (caught.value.status, caught.value.param) == (400, expected)
        else:
            assert read(Fields(fields)) == expected


@pytest.mark.parametrize("fields", [{"logprobs": 2}, {"logprobs": 0}, {"return_log_probs": True}])
def test_log_probabilities_are_refused_by_dialects_without_a_field_for_them(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="no place for it") as caught:
        generation_settings(fields, {})
    assert caught.value.param == next(iter(fields))
    assert generation_settings({"return_log_probs": False}, {}).return_log_probs is False


def test_details_are_those_of_text_generation_inference() -> None:
    shape = {"finish_reason": "eos_token", "generated_tokens": 5, **details(TOKENS, 2)}
    found = TextGenerationOutput.parse_obj_as_instance({"generated_text": TEXT, "details": shape}).details
    assert found and [token.id for token in found.tokens] == [5, 7, 10, 11, 1]
    assert [token.special for token in found.tokens] == [False, False, False, False, True]
    top: Any = found.top_tokens  # lists in a list, which this client does not convert
    assert [token["id"] for token in top[3]] == [12, 11]
    assert "top_tokens" not in details(TOKENS, 0)


@pytest.mark.parametrize(
    ("reason", "tokens", "expected"),
    [
        ("length", TOKENS, "length"),
        ("stop", TOKENS, "eos_token"),
        ("stop", TOKENS[:-1], "stop_sequence"),
        ("stop", (), "stop"),
    ],
)
def test_the_finish_reason_is_that_of_text_generation_inference(
    reason: str, tokens: tuple[Token, ...], expected: str
) -> None:
    assert finish_reason(reason, tokens) == expected


@pytest.mark.parametrize(
    ("piece", "texts"),
    [
        (Piece(TEXT, "stop", tokens=TOKENS), ["caf", "", "é", " au", "</s>"]),
        (Piece("caf", tokens=TOKENS[:1]), ["caf"]),
        (Piece("held back", "stop", tokens=TOKENS[-1:]), ["held back"]),
        (Piece("ca", "stop", tokens=TOKENS[:2]), ["", "ca"]),
        (Piece("", "stop", tokens=TOKENS[-1:]), ["</s>"]),
        (Piece("plain"), ["plain"]),
    ],
)
def test_the_events_of_a_piece_have_its_text_together(piece: Piece, texts: list[str]) -> None:
    rows = stream_tokens(piece, 0)
    assert [row["token"]["text"] for row in rows] == texts
    shown = [row["token"]["text"] for row in rows if not row["token"]["special"]]
    assert "".join(shown) == piece.text
    for row in rows:
        TextGenerationStreamOutput.parse_obj_as_instance({"index": 1, **row})
