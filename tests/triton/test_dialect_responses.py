"""OpenAI's responses on `hfx serve`, with OpenAI's client: the texts and tokens of chat completions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.rigs.clients.dialect_calls import TALKER, call
from tests.rigs.servers.generation_server import RECITAL
from tests.rigs.servers.serve_process import ServeProcess

if TYPE_CHECKING:  # it takes two seconds to import
    import openai

pytestmark = pytest.mark.triton
CONVERSATION = [
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "A model."},
    {"role": "user", "content": "Tell me more."},
]
ITEMS: list[Any] = [  # the same, as clients send the output of an earlier response
    {"role": "user", "content": [{"type": "input_text", "text": "Who are "}, {"type": "input_text", "text": "you?"}]},
    {"type": "message", "id": "msg-1", "status": "completed", "role": "assistant"}
    | {"content": [{"type": "output_text", "text": "A model.", "annotations": [], "logprobs": []}]},
    {"type": "message", "role": "user", "content": "Tell me more."},
]
SETTINGS: list[dict[str, Any]] = [{}, {"temperature": 0.9, "top_p": 0.8, "extra_body": {"seed": 3, "top_k": 50}}]


@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize(("before", "sent"), [([], ITEMS), (["Be brief."], ITEMS), ([], "Tell me more.")])
def test_a_response_is_the_message_that_a_chat_has(
    before: list[str], sent: Any, settings: dict[str, Any], openai_api: openai.OpenAI
) -> None:
    chat: list[Any] = [{"role": "system", "content": text} for text in before]
    chat += CONVERSATION if sent is ITEMS else CONVERSATION[-1:]
    expected = openai_api.chat.completions.create(model=TALKER, messages=chat, max_tokens=20, **settings)
    instructions: Any = {"instructions": before[0]} if before else {}
    options: Any = {"model": TALKER, "input": sent, "max_output_tokens": 20, **instructions, **settings}
    answer = openai_api.responses.create(**options)
    assert expected.usage and answer.usage
    assert answer.output_text == expected.choices[0].message.content
    counts = (expected.usage.prompt_tokens, expected.usage.completion_tokens)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == counts
    assert (answer.status == "incomplete") == (expected.choices[0].finish_reason == "length")
    assert (answer.instructions, answer.max_output_tokens) == (instructions.get("instructions"), 20)
    assert (answer.error, answer.previous_response_id, answer.tools) == (None, None, [])


@pytest.mark.parametrize(("setting", "end"), [({}, "incomplete"), ({"stop": "日"}, "completed")])
def test_a_stream_has_the_events_that_the_client_collects(
    setting: dict[str, Any], end: str, openai_api: openai.OpenAI
) -> None:
    options: Any = {"model": RECITAL, "input": "a", "max_output_tokens": 300, "extra_body": setting}
    whole = openai_api.responses.create(**options)
    events = list(openai_api.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done", f"response.{end}"),
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text and len(deltas) > 1  # a busy server joins some
    last: Any = events[-1]
    assert (last.response.output_text, last.response.usage) == (whole.output_text, whole.usage)
    with openai_api.responses.stream(**options) as stream:  # the client's own accumulator checks each event
        for _ in stream:
            pass
        collected = stream.get_final_response() if end == "completed" else None
    assert collected is None or collected.output_text == whole.output_text


def test_a_format_is_enforced(openai_api: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "name": "number", "schema": schema, "strict": True}}
    answer = openai_api.responses.create(model=TALKER, input="a", text=form, max_output_tokens=40)
    jsonschema.validate(json.loads(answer.output_text), schema)


IMAGE = {"type": "input_image", "image_url": "https://example.com/a.png"}


@pytest.mark.parametrize(
    ("status", "field", "fields"),
    [
        (400, "previous_response_id", {"previous_response_id": "resp_1"}),
        (400, "store", {"store": True}),
        (400, "background", {"background": True}),
        (400, "conversation", {"conversation": "conv_1"}),
        (400, "tools", {"tools": [{"type": "web_search"}]}),
        (400, "tool_choice", {"tool_choice": "required"}),
        (400, "include", {"include": ["message.output_text.logprobs"]}),
        (400, "reasoning", {"reasoning": {"effort": "high"}}),
        (400, "truncation", {"truncation": "auto"}),
        (400, "prompt", {"prompt": {"id": "pmpt_1"}}),
        (400, "n", {"n": 2}),
        (400, "max_tokens", {"max_tokens": 2}),
        (400, "max_output_tokens", {"max_output_tokens": 0}),
        (400, "max_output_tokens", {"max_output_tokens": "2"}),
        (400, "temperature", {"temperature": -1}),
        (400, "stream", {"stream": "yes"}),
        (400, "text", {"text": {"format": {"type": "grammar"}}}),
        (400, "text", {"text": "json"}),
        (400, "instructions", {"instructions": ["a"]}),
        (400, "input", {"input": []}),
        (400, "input", {"input": None}),
        (400, "input", {"input": [{"type": "function_call_output", "call_id": "1", "output": "a"}]}),
        (400, "input", {"input": [{"role": "user", "content": [IMAGE]}]}),
        (400, "input", {"input": [{"role": "anna", "content": "a"}]}),
        (400, "input", {"input": [{"role": "user", "content": {"a": [[1]]}}]}),
        (400, "input", {"model": "stories"}),  # it has no chat template
        (400, "model", {"model": "sentiment-fp32"}),
        (404, None, {"model": "nothing"}),
        (413, "input", {"input": [{"role": "user", "content": "a"}] * 3000}),
    ],
)
def test_an_invalid_or_unsupported_response_names_the_field(
    status: int, field: str | None, fields: dict[str, Any], dialects: ServeProcess
) -> None:
    answered, _, answer = call(dialects, "/v1/responses", {"model": TALKER, "input": "a", **fields})
    assert (answered, answer["error"]["param"]) == (status, field), answer
