"""OpenAI's responses: the next message of a conversation that the request has as a whole. Nothing is stored.

Source: the types of OpenAI's Python client, 2026.
"""

from __future__ import annotations

import time
from typing import Any

from hfx.front import chat
from hfx.front.dialect import DialectRequest
from hfx.front.dialects import openai_parameters
from hfx.front.dialects.openai_response_objects import ECHOED, ResponseObjects
from hfx.front.fields import Fields, text
from hfx.front.refusals import Refusal, invalid, renamed, shown
from hfx.front.schemas import array, body
from hfx.names import GENERATION_TASKS, MAX_TOKENS

# Fields that hfx does not support, with the values that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("background", "store"), (False,)),
    **dict.fromkeys(("conversation", "max_tool_calls", "previous_response_id", "prompt"), ()),
    **dict.fromkeys(("include", "tools"), ([],)),
    "parallel_tool_calls": (True, False),
    "reasoning": ({}, {"effort": "none"}),
    "stream_options": ({}, {"include_obfuscation": False}),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
PARTS = ("input_text", "output_text", "text")
NAMES = {"messages": "input", "response_format": "text", MAX_TOKENS: "max_output_tokens"}  # by the chats' names


async def responses(request: DialectRequest) -> Any:
    """POST /v1/responses: return the next message of a conversation, or a stream of events."""
    fields = request.fields(BODY)
    fields.refuse_unsupported(NEUTRAL)
    for name in (*NEUTRAL, *openai_parameters.IGNORED):
        fields.pop(name, None)
    model = await request.named_model(fields, *GENERATION_TASKS)
    streams, sent = fields.flag("stream"), {name: fields.get(name) for name in ECHOED}
    request.name_texts("input")
    request.names.update(NAMES)
    try:
        options = chat.checked_options(fields.pop("chat_template_kwargs", None))
        prompt = await chat.chat_prompt(request.files, model, _messages(fields), options=options)
        fields |= {
            "response_format": _format(fields.pop("text", None)),
            MAX_TOKENS: fields.pop(NAMES[MAX_TOKENS], None),
        }
        settings = openai_parameters.settings(Fields(chat.chat_settings(model, fields)), request.names)
    except Refusal as refusal:
        raise renamed(refusal, NAMES) from None
    response = ResponseObjects(request.id, model.name, sent, int(time.time()))
    if streams:
        return response.events(request.pieces(model, [(prompt, settings)]))
    [result] = await request.generate(model, [(prompt, settings)])
    return response.whole(result)


def _messages(fields: Fields) -> list[Any]:
    """Return `instructions` and `input` as messages of a chat, which are checked later. Raises Refusal (400)."""
    sent, instructions = fields.pop("input", None), fields.pop("instructions", None)
    before = [] if instructions is None else [{"role": "system", "content": text(instructions, "instructions")}]
    if isinstance(sent, str):
        return [*before, {"role": "user", "content": sent}]
    if not isinstance(sent, list) or not sent:
        raise invalid(f"input is {shown(sent)}. Send a text, or a list of messages.", "input")
    return [*before, *map(_message, sent)]


def _message(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        raise invalid(f"An item of the input is {shown(item)}. Send messages only.", "input")
    content = item.get("content")
    parts = [_text_part(part) for part in content] if isinstance(content, list) else content
    return {"role": item.get("role"), "content": parts}


def _text_part(part: Any) -> Any:
    is_text = isinstance(part, dict) and part.get("type") in PARTS
    return {"type": "text", "text": part.get("text")} if is_text else part


def _format(sent: Any) -> Any:
    """Return `text.format` as a chat's `response_format`. Raises Refusal (400)."""
    fields = Fields(text=sent).object("text")
    fields.refuse_unknown(TEXT["properties"])
    chosen = fields.object("format")
    return {"type": chosen.get("type"), "json_schema": chosen} if chosen else None


TEXT = body("", format=body("type", type=str, name=str, schema=dict, strict=bool), verbosity=str)
MESSAGE = body("role content", type=str, id=str, status=str, role=str, content=str | list[dict[str, Any]])
BODY = body(
    "model input",
    **{
        **openai_parameters.OF_MODELS,
        **{name: type(values[0]) if values else Any for name, values in NEUTRAL.items()},
        **dict.fromkeys(openai_parameters.IGNORED, Any),
    },
    model=str,
    input={"anyOf": [{"type": "string"}, array(MESSAGE)]},
    instructions=str,
    max_output_tokens=int,
    text=TEXT,
    stream=bool,
    chat_template_kwargs=dict,
)
