"""OpenAI's chat completions: answers of generators, and entities of token-classification models."""

from __future__ import annotations

from typing import Any

from hfx.front import chat
from hfx.front.dialect import DialectRequest
from hfx.front.dialects import openai_entities
from hfx.front.dialects.openai_completions import CHAT, MESSAGES, complete
from hfx.front.dialects.openai_parameters import without_ignored
from hfx.front.fields import Fields
from hfx.front.schemas import either
from hfx.names import GENERATION_TASKS, Task


async def chat_completions(request: DialectRequest) -> Any:
    """POST /v1/chat/completions: generate the next message of a conversation, or find the entities of a text."""
    fields = without_ignored(request.fields())
    model = await request.named_model(fields, *GENERATION_TASKS, Task.TOKEN_CLASSIFICATION)
    if model.task is Task.TOKEN_CLASSIFICATION:
        return await openai_entities.detect(request, model, fields)
    options = chat.checked_options(fields.pop("chat_template_kwargs", None))
    prompt = await chat.chat_prompt(request.files, model, fields.pop("messages", None), options=options)
    fields = Fields(chat.chat_settings(model, fields))
    return await complete(request, CHAT, model, fields, prompt)


BODIES = either(MESSAGES, openai_entities.BODY)
