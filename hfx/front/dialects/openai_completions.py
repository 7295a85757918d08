"""Generated texts in OpenAI's API: completions and chat completions, whole and in streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from hfx.client.results import Generation, Piece, joined
from hfx.client.settings import GenerationSettings
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest, Events
from hfx.front.dialects import openai_parameters, openai_tokens
from hfx.front.fields import Fields, check_count
from hfx.front.refusals import invalid
from hfx.front.schemas import array, body

MOST_CHOICES = 128
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Style:
    """The differences between completions and chat completions: names of objects, and the JSON of text and tokens.

    `message` makes the JSON of a choice's text, and `delta` that of a stream's piece. `opening` is the piece before any
    text. `alternatives` reads the fields for log-probabilities in a request. `logprobs` returns a function that makes
    the JSON of a choice's log-probabilities.
    """

    prefix: str
    whole: str
    chunk: str
    message: Callable[[str], Mapping[str, Any]]
    delta: Callable[[str], Mapping[str, Any]]
    opening: Mapping[str, Any] | None
    alternatives: Callable[[Fields], int | None]
    logprobs: Callable[[int, bool], openai_tokens.LogprobsForm]


PLAIN = Style(
    "cmpl",
    "text_completion",
    "text_completion",
    lambda t: {"text": t},
    lambda t: {"text": t},
    None,
    openai_tokens.completion_alternatives,
    openai_tokens.CompletionLogprobs,
)
CHAT = Style(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    lambda t: {"message": {"role": "assistant", "content": t, "refusal": None}},
    lambda t: {"delta": {"content": t} if t else {}},
    {"delta": {"role": "assistant", "content": ""}},
    openai_tokens.chat_alternatives,
    lambda *_: openai_tokens.chat_logprobs,
)


@dataclass(frozen=True)
class Completion:
    """A request for a text for each prompt and each of `choices`, which are settings with a seed each.

    `shown` says what an answer has of the prompt. If `has_usage` is true, a stream ends with the numbers of tokens.
    `head` has the fields of all objects.
    """

    style: Style
    prompts: Sequence[openai_tokens.Prompt]
    choices: Sequence[GenerationSettings]
    shown: openai_tokens.Shown
    has_usage: bool
    head: Mapping[str, Any]

    @property
    def texts(self) -> list[tuple[str, GenerationSettings]]:
        """The prompt and settings of each text, in the order of their indices."""
        return [self.shown.settings(settings, prompt) for prompt in self.prompts for settings in self.choices]

    @property
    def echoes(self) -> list[openai_tokens.Echo]:
        """What precedes each text, in the order of their indices."""
        return [openai_tokens.Echo(prompt, self.shown) for prompt in self.prompts for _ in self.choices]

    def logprobs(self) -> openai_tokens.LogprobsForm:
        """Return a function that makes the JSON of a text's log-probabilities."""
        alternatives = self.choices[0].logprobs
        return (lambda tokens: None) if alternatives is None else self.style.logprobs(alternatives, self.shown.echo)

    def usage(self, results: Sequence[Generation]) -> dict[str, int]:
        """Return the numbers of tokens: those of each prompt counted once, and those of all texts."""
        prompt = sum(result.input_tokens for result in results[:: len(self.choices)])
        written = sum(result.output_tokens for result in results)
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def chunk(self, *choices: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Return an event of a stream."""
        return {**self.head, "object": self.style.chunk, "choices": list(choices), **more}


async def complete(request: DialectRequest, style: Style, model: ServedModel, fields: Fields, chat: str = "") -> Any:
    """Return the answer to a request that continues prompts or a `chat`, or a stream if `fields` request one."""
    request.name_texts("messages" if style is CHAT else "prompt")
    prompts: Sequence[openai_tokens.Prompt] = [chat] if style is CHAT else openai_tokens.read_prompts(fields)
    shown = openai_tokens.Shown() if style is CHAT else openai_tokens.read_shown(fields, request.names)
    settings = openai_parameters.settings(fields, request.names)
    settings = replace(settings, logprobs=style.alternatives(fields))
    count = fields.number("n", 1, high=MOST_CHOICES)
    check_count(count * len(prompts), "prompt and n")
    streams = fields.flag("stream")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict) or (options and not streams):
        raise invalid("stream_options go with stream. Send both or neither.", "stream_options")
    head = {
        "id": f"{style.prefix}-{request.id}",
        "created": int(time.time()),
        "model": model.name,
        "system_fingerprint": "hfx",  # text-generation-inference's client wants one
    }
    has_usage = Fields(options).flag("include_usage")
    completion = Completion(style, prompts, _seeded(settings, count), shown, has_usage, head)
    if streams:
        return _stream(request, model, completion)
    results = [shown.cut(result) for result in await request.generate(model, completion.texts)]
    choices = []
    for index, (result, echo) in enumerate(zip(results, completion.echoes, strict=True)):
        message = style.message(echo(result.prompt_tokens) + echo(()) + result.text)
        logprobs = completion.logprobs()(shown.tokens(result))
        choices.append({**_choice(index, message, logprobs, result.finish_reason), **shown.fields(result)})
    return {**head, "object": style.whole, "choices": choices, "usage": completion.usage(results)}


def _seeded(settings: GenerationSettings, count: int) -> list[GenerationSettings]:
    """Return the settings of each of `count` choices, whose seeds count up from the request's seed."""
    if settings.seed is None:
        return [settings] * count
    return [replace(settings, seed=(settings.seed + number) % 2**64) for number in range(count)]


async def _stream(request: DialectRequest, model: ServedModel, completion: Completion) -> Events:
    style, texts = completion.style, completion.texts
    pieces: list[list[Piece]] = [[] for _ in texts]
    forms, echoes = [completion.logprobs() for _ in texts], completion.echoes
    async with aclosing(request.pieces(model, texts)) as arriving:
        async for index, arrived in arriving:
            piece = completion.shown.cut(arrived)
            text = echoes[index](piece.prompt_tokens) + piece.text
            if not pieces[index] and style.opening:
                yield completion.chunk(_choice(index, style.opening))
            pieces[index].append(replace(piece, text="", log_probs=(), tokens=(), prompt_tokens=()))
            logprobs = forms[index](completion.shown.tokens(piece))
            if text or not piece.finish_reason or style is PLAIN:
                reason = piece.finish_reason if style is PLAIN else None
                yield completion.chunk(_choice(index, style.delta(text), logprobs, reason or None))
                logprobs = None
            if piece.finish_reason and style is not PLAIN:
                yield completion.chunk(_choice(index, style.delta(""), logprobs, piece.finish_reason))
    if completion.has_usage:
        yield completion.chunk(usage=completion.usage([joined(each) for each in pieces]))
    yield DONE


def _choice(
    index: int, content: Mapping[str, Any], logprobs: Mapping[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}


PROMPTS = body("model prompt", **{**openai_parameters.SCHEMAS, **openai_tokens.PROMPT_SCHEMA})
MESSAGES = body(
    "model messages",
    messages=array(body("role content", role=str, content=str | list[dict[str, Any]])),
    max_completion_tokens=int,
    top_logprobs=int,
    **{**openai_parameters.SCHEMAS, "logprobs": bool},
)
