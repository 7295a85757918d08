"""Messages of a conversation as one prompt, by the chat template of the model's checkpoint.

Templates are programs of whoever made the checkpoint: they run in jinja2's sandbox, as in transformers, which has the
same variables and functions.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from hfx.front.catalog import ServedModel
from hfx.front.fields import shown, text
from hfx.front.model_files import ModelFiles
from hfx.front.refusals import Refusal

ROLES = ("system", "developer", "user", "assistant", "tool")


async def chat_prompt(files: ModelFiles, model: ServedModel, messages: Any) -> str:
    """The prompt that the model continues with its next message. Raises Refusal (400)."""
    chat = files.chat(model)
    if chat is None:
        message = f"The model {model.name!r} has no chat template. Send its prompt to /v1/completions."
        raise Refusal(400, message, param="messages")
    conversation = checked_messages(messages)
    prompt = await asyncio.to_thread(render, chat["template"], chat["special_tokens"], conversation)
    begin = chat["special_tokens"].get("bos_token", "")
    if begin and prompt.startswith(begin) and (await files.encodings(model, ["a"]))[0].tokens[0] == begin:
        return prompt[len(begin) :]  # the tokenizer adds it again
    return prompt


def checked_messages(messages: Any) -> list[dict[str, str]]:
    """Messages with a role and a text; parts of a content are joined. Raises Refusal (400)."""
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, f"messages is {shown(messages)}. Send a list of messages.", param="messages")
    return [_message(message) for message in messages]


def render(template: str, special_tokens: Mapping[str, str], messages: Sequence[Mapping[str, str]]) -> str:
    """What the template makes of `messages`, with the beginning of the answer. Raises Refusal (400, 501)."""
    try:
        from jinja2.exceptions import TemplateError
    except ImportError:
        raise Refusal(501, "Chat templates need jinja2. Run: pip install 'hfx[front]'") from None
    try:
        return str(_compiled(template).render(messages=messages, add_generation_prompt=True, **special_tokens))
    except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        message = f"The model's chat template refuses the messages: {error}. Send others."
        raise Refusal(400, message, param="messages") from None


@cache
def _compiled(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = time.strftime
    return environment.from_string(template)


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise Refusal(400, f"A message is {shown(message)}. Send a role and a content.", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part) for part in content)
    return {"role": message["role"], "content": text(content, "messages")}


def _part(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise Refusal(400, f"A part of a content is {shown(part)}. Send texts only.", param="messages")
    return text(part.get("text"), "messages")


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise ValueError(message)
