"""Entities in chat completions, as NeMo Anonymizer reads them: one message is the text, and the answer is JSON.

Source: the server contract in NeMo Anonymizer's documentation (self-hosting GLiNER2), 2026.
"""

from __future__ import annotations

import time
from typing import Any

from hfx.front.catalog import ServedModel
from hfx.front.chat import checked_messages
from hfx.front.dialect import DialectRequest
from hfx.front.dialects.openai_completions import MESSAGES
from hfx.front.entities import entities
from hfx.front.fields import Fields
from hfx.front.refusals import dumped, invalid
from hfx.front.schemas import body

# How GLiNER divides texts, which models here do by themselves.
WITHOUT_EFFECT = ("chunk_length", "overlap")
NEUTRAL: dict[str, tuple[Any, ...]] = {"stream": (False,), "n": (1,)}


async def detect(request: DialectRequest, model: ServedModel, fields: Fields) -> dict[str, Any]:
    """Return a chat completion whose message has the entities of the text in the request's only message."""
    fields.refuse_unknown(BODY["properties"])
    fields.refuse_unsupported(NEUTRAL)
    fields.flag("flat_ner", True)  # entities of models with labels of their own never overlap
    for name in WITHOUT_EFFECT:
        fields.number(name, 1, low=0)
    messages = checked_messages(fields.get("messages"))
    if len(messages) != 1:
        raise invalid(f"There are {len(messages)} messages. Send the text as the only one.", "messages")
    text = messages[0]["content"]
    request.name_texts("messages")
    [row] = await entities(request, model, fields, [text], "labels", "threshold")
    named = [
        {"text": text[each.start : each.end], "label": each.entity, "start": each.start, "end": each.end}
        | {"score": each.score}
        for each in row
    ]
    message = {"role": "assistant", "content": dumped({"entities": named}).decode(), "refusal": None}
    tokens = await request.count_tokens(model, [text])
    return {
        "id": f"chatcmpl-{request.id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model.name,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
    }


BODY = body(
    "model messages",
    **{name: MESSAGES["properties"][name] for name in ("model", "messages", "seed", "stream", "n")},
    labels=list[str],
    threshold=float,
    flat_ner=bool,
    **dict.fromkeys(WITHOUT_EFFECT, int),
)
