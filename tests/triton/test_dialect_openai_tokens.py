"""Log-probabilities and prompts in OpenAI's API: those of hfx's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hfx.client import Client
from tests.rigs.clients.dialect_calls import PROMPT
from tests.rigs.servers.generation_server import RECITAL

if TYPE_CHECKING:  # it takes two seconds to import
    import openai

pytestmark = pytest.mark.triton
SAMPLED = {"temperature": 0.9, "seed": 5, "max_tokens": 12}


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("streams", [False, True])
def test_a_completion_has_the_log_probabilities_of_the_model(
    streams: bool, sampled: bool, openai_api: openai.OpenAI, grpc: Client
) -> None:
    settings: Any = SAMPLED if sampled else {"max_tokens": 12}
    expected = grpc.generate("stories", PROMPT, logprobs=3, **settings)
    options: Any = {"model": "stories", "prompt": PROMPT, "logprobs": 3, **settings}
    answers = (
        [*openai_api.completions.create(**options, stream=True)]
        if streams
        else [openai_api.completions.create(**options)]
    )
    found = [answer.choices[0].logprobs for answer in answers if answer.choices[0].logprobs]
    tokens = [text for each in found for text in each.tokens or ()]
    assert tokens == [token.text for token in expected.tokens]
    assert [value for each in found for value in each.token_logprobs or ()] == pytest.approx(expected.log_probs)
    offsets = [offset for each in found for offset in each.text_offset or ()]
    assert [expected.text[: offset + len(text)] for offset, text in zip(offsets, tokens, strict=True)] == [
        "".join(tokens[: at + 1]) for at in range(len(tokens))
    ]
    for top, token in zip((top for each in found for top in each.top_logprobs or ()), expected.tokens, strict=True):
        assert top == pytest.approx({each.text: each.logprob for each in (*token.top, token)})


@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_has_the_log_probabilities_and_bytes_of_its_tokens(streams: bool, openai_api: openai.OpenAI) -> None:
    options: Any = {"model": RECITAL, "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 60}
    options |= {"logprobs": True, "top_logprobs": 2}
    answers = (
        [*openai_api.chat.completions.create(**options, stream=True)]
        if streams
        else [openai_api.chat.completions.create(**options)]
    )
    choices = [answer.choices[0] for answer in answers]
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content or ()]
    text = "".join((choice.delta if streams else choice.message).content or "" for choice in choices)
    assert len(tokens) == 60
    raw = bytes(byte for token in tokens for byte in token.bytes or ())
    assert raw.decode("utf-8", "replace") == text
    assert any(token.token.startswith("bytes:") for token in tokens)  # a character of several tokens
    for token in tokens:
        assert token.top_logprobs[0].logprob == token.logprob and len(token.top_logprobs) == 2


def test_a_completion_has_no_log_probabilities_by_default(openai_api: openai.OpenAI) -> None:
    [choice] = openai_api.completions.create(model="stories", prompt=PROMPT, max_tokens=3).choices
    assert choice.logprobs is None


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echo_has_the_log_probabilities_of_the_prompt(
    as_ids: bool, streams: bool, openai_api: openai.OpenAI, grpc: Client
) -> None:
    expected = grpc.generate("stories", PROMPT, max_tokens=6, logprobs=2, prompt_logprobs=2)
    ids = [token.id for token in expected.prompt_tokens]
    options: Any = {"model": "stories", "prompt": ids if as_ids else PROMPT, "max_tokens": 6, "logprobs": 2}
    options |= {"echo": True}
    answers = (
        [*openai_api.completions.create(**options, stream=True)]
        if streams
        else [openai_api.completions.create(**options)]
    )
    assert "".join(answer.choices[0].text for answer in answers) == PROMPT + expected.text
    found = [answer.choices[0].logprobs for answer in answers if answer.choices[0].logprobs]
    tokens = (*expected.prompt_tokens, *expected.tokens)
    assert [text for each in found for text in each.tokens or ()] == [token.text for token in tokens]
    given, *values = [value for each in found for value in each.token_logprobs or ()]
    assert (given, values) == (None, [token.logprob for token in tokens[1:]])
    none, *tops = [top for each in found for top in each.top_logprobs or ()]
    assert none is None
    for top, token in zip(tops, tokens[1:], strict=True):
        assert top == pytest.approx({each.text: each.logprob for each in (*token.top, token)})
    offsets = [offset for each in found for offset in each.text_offset or ()]
    assert offsets == [len("".join(token.text for token in tokens[:at])) for at in range(len(tokens))]


@pytest.mark.parametrize("own", [{"echo": True, "logprobs": 1}, {"echo": True}, {"prompt_logprobs": 0}], ids=str)
def test_no_tokens_are_generated_if_max_tokens_is_0(own: dict[str, Any], openai_api: openai.OpenAI) -> None:
    options: Any = {"model": "stories", "prompt": [PROMPT, "Once"], "max_tokens": 0}
    answer = openai_api.completions.create(**options, extra_body=own)
    assert [choice.text for choice in answer.choices] == ([PROMPT, "Once"] if "echo" in own else ["", ""])
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage and answer.usage.completion_tokens == 0
    for choice in answer.choices if "logprobs" in own else ():
        assert choice.logprobs and choice.logprobs.tokens
        assert "".join(choice.logprobs.tokens) == choice.text


def test_prompt_logprobs_are_those_of_the_client_by_id(openai_api: openai.OpenAI, grpc: Client) -> None:
    first, *expected = grpc.generate("stories", PROMPT, max_tokens=2, prompt_logprobs=2).prompt_tokens
    [choice] = openai_api.completions.create(
        model="stories", prompt=PROMPT, max_tokens=2, extra_body={"prompt_logprobs": 2}
    ).choices
    none, *found = choice.model_dump()["prompt_logprobs"]
    assert (none, first.logprob, first.top) == (None, 0.0, ())
    assert [{int(number): each["logprob"] for number, each in row.items()} for row in found] == [
        {each.id: each.logprob for each in (*token.top, token)} for token in expected
    ]
    for row, token in zip(found, expected, strict=True):
        assert [row[str(each.id)]["rank"] for each in token.top] == [1, 2]
        assert row[str(token.id)]["decoded_token"] == token.text
