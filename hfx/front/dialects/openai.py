"""OpenAI's API: models, completions, chat completions and embeddings.

The defaults are those of the model's own generation_config.json, also where OpenAI's defaults differ. A field that
can't be honoured is a 400 that names the field in `param`. Source: the OpenAPI description of api.openai.com/v1, 2026.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from hfx.client import calls
from hfx.client.results import Generation, Piece, joined
from hfx.client.settings import GenerationSettings
from hfx.front.answers import (
    CompletionLogprobs,
    LogprobsForm,
    chat_alternatives,
    chat_logprobs,
    completion_alternatives,
    vector_json,
)
from hfx.front.catalog import ServedModel
from hfx.front.chat import chat_prompt, chat_settings, checked_options
from hfx.front.dialect import Dialect, DialectRequest, Events, Route, event, routes
from hfx.front.fields import (
    Fields,
    check_count,
    check_dimensions,
    check_generator,
    check_task,
    embedding_options,
    flag,
    generation_settings,
    json_object,
    prompt_of,
    refuse_unknown,
    refuse_unsupported,
    shown,
    text,
    texts,
    whole_number,
)
from hfx.front.inference import in_order, interleaved
from hfx.front.refusals import UNKNOWN_PATH, Refusal, dumped
from hfx.front.schemas import GENERATION, array, body
from hfx.front.structured_output import OPENAI, OPENAI_SCHEMAS, openai_structure
from hfx.names import LOGPROBS, MAX_TOKENS, TEXT_INPUT, Task
from hfx.tasks.transformers_settings import LACKING

MOST_CHOICES = 128
DONE = b"data: [DONE]\n\n"
# Fields of this API that hfx does not support, with the values that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    **LACKING,
    # vLLM's
    **dict.fromkeys(
        ("allowed_token_ids", "chat_template", "guided_grammar", "prompt_logprobs", "truncate_prompt_tokens"), ()
    ),
    "add_generation_prompt": (True,),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "use_beam_search": (False,),
}
# Clients that send token ids by default, and the setting that prevents it.
TOKEN_IDS = {
    "input": "LangChain does so with OpenAIEmbeddings(check_embedding_ctx_length=False)",
    "prompt": "lm-eval does so with tokenized_requests=False",
}
IGNORED = {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"}
OWN = {
    "model", "prompt", "messages", "stream", "stream_options", "n", "logprobs", "top_logprobs", "max_completion_tokens",
    "ignore_eos", *OPENAI,
}  # fmt: skip
TYPES = {429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


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
    logprobs: Callable[[int], LogprobsForm]


PLAIN = Style(
    "cmpl",
    "text_completion",
    "text_completion",
    lambda t: {"text": t},
    lambda t: {"text": t},
    None,
    completion_alternatives,
    CompletionLogprobs,
)
CHAT = Style(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    lambda t: {"message": {"role": "assistant", "content": t, "refusal": None}},
    lambda t: {"delta": {"content": t} if t else {}},
    {"delta": {"role": "assistant", "content": ""}},
    chat_alternatives,
    lambda _: chat_logprobs,
)


@dataclass(frozen=True)
class Completion:
    """A request for a text for each prompt and each of `choices`.

    If `has_usage` is true, a stream ends with the numbers of tokens.
    """

    model: ServedModel
    prompts: tuple[str, ...]
    choices: tuple[GenerationSettings, ...]
    streams: bool
    has_usage: bool
    head: Mapping[str, Any]

    @property
    def texts(self) -> list[tuple[str, GenerationSettings]]:
        """The prompt and settings of each choice, in the order of their indices."""
        return [(prompt, settings) for prompt in self.prompts for settings in self.choices]

    def logprobs(self, style: Style) -> LogprobsForm:
        """Return a function that makes the JSON of a choice's log-probabilities."""
        alternatives = self.choices[0].logprobs
        return (lambda tokens: None) if alternatives is None else style.logprobs(alternatives)


async def list_models(request: DialectRequest) -> bytes:
    """GET /v1/models: list the served models."""
    return dumped({"object": "list", "data": [_model(model) for model in await request.inference.catalog.models()]})


async def get_model(request: DialectRequest) -> bytes:
    """GET /v1/models/NAME: describe a served model."""
    return dumped(_model(await request.inference.catalog.model(request.model_name)))


async def completions(request: DialectRequest) -> bytes | Events:
    """POST /v1/completions: continue prompts."""
    fields = _fields(request)
    model = await _named_model(request, fields)
    check_generator(model)
    prompts = _texts(fields, "prompt")
    return await _answer(request, PLAIN, _completion(request, PLAIN, model, fields, prompts))


async def chat_completions(request: DialectRequest) -> bytes | Events:
    """POST /v1/chat/completions: generate the next message of a conversation."""
    fields = _fields(request)
    model = await _named_model(request, fields)
    check_generator(model)
    options = checked_options(fields.pop("chat_template_kwargs", None))
    prompt = await chat_prompt(request.files, model, fields.pop("messages", None), options=options)
    return await _answer(request, CHAT, _completion(request, CHAT, model, chat_settings(model, fields), [prompt]))


async def embeddings(request: DialectRequest) -> bytes:
    """POST /v1/embeddings: return the vectors of texts."""
    fields = _fields(request)
    model = await _named_model(request, fields)
    check_task(model, Task.FEATURE_EXTRACTION)
    inputs = _texts(fields, "input")
    request.inference.names[TEXT_INPUT] = "input"
    encoding = fields.get("encoding_format") or "float"
    refuse_unknown(fields, EMBEDDINGS["properties"])
    call = calls.embed(model.name, **embedding_options(model, fields))
    results = await request.inference.rows(model, [call(one) for one in inputs])
    vectors = [result.vector for result in results]
    check_dimensions(fields, len(vectors[0]))
    read = request.files.prompted(model, inputs, **prompt_of(fields))
    tokens = await request.files.count(model, read, request.inference.has_left)
    request.inference.input_tokens = tokens
    data = [
        {"object": "embedding", "index": index, "embedding": vector_json(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dumped({"object": "list", "data": data, "model": model.name, "usage": usage})


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    kind = TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    code = UNKNOWN_PATH if refusal.reason == UNKNOWN_PATH else CODES.get(refusal.status)
    shape = {"message": refusal.message, "type": kind, "param": refusal.param or None, "code": code}
    return refusal.status, {"error": shape}


def _model(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "hfx"}


def _fields(request: DialectRequest) -> dict[str, Any]:
    """Return the body's fields, without IGNORED: their values may be large, and would be kept for the whole request."""
    fields = json_object(request.content)
    for name in IGNORED:
        fields.pop(name, None)
    return fields


async def _named_model(request: DialectRequest, fields: Fields) -> ServedModel:
    return await request.inference.catalog.model(request.model_name or text(fields.get("model"), "model"))


def _texts(fields: Fields, name: str) -> list[str]:
    """Return the texts in a field. Raises Refusal (400) for token ids, which may come from any tokenizer."""
    value = fields.get(name)
    if isinstance(value, list) and value and isinstance(value[0], (int, list)):
        raise Refusal(400, f"{name} has token ids, which are not supported. Send texts: {TOKEN_IDS[name]}.", param=name)
    return texts(value, name)


def _completion(
    request: DialectRequest, style: Style, model: ServedModel, fields: Fields, prompts: Sequence[str]
) -> Completion:
    refuse_unsupported(fields, NEUTRAL)
    names = request.inference.names
    names[TEXT_INPUT] = "messages" if style is CHAT else "prompt"
    if fields.get("top_logprobs"):
        names[LOGPROBS] = "top_logprobs"
    settings = replace(_settings(fields, names), logprobs=style.alternatives(fields))
    count = whole_number(fields, "n", 1, MOST_CHOICES, 1)
    check_count(count * len(prompts), "prompt and n")
    streams = flag(fields, "stream")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict) or (options and not streams):
        raise Refusal(400, "stream_options go with stream. Send both or neither.", param="stream_options")
    head = {
        "id": f"{style.prefix}-{request.id}",
        "created": int(time.time()),
        "model": model.name,
        "system_fingerprint": "hfx",  # text-generation-inference's client wants one
    }
    return Completion(model, tuple(prompts), _seeded(settings, count), streams, flag(options, "include_usage"), head)


def _settings(fields: Fields, names: dict[str, str]) -> GenerationSettings:
    """Return the settings in `fields`, and add the caller's names of fields to `names`. Raises Refusal (400)."""
    named = {name: value for name, value in fields.items() if name not in OWN | NEUTRAL.keys()}
    longest = fields.get("max_completion_tokens")
    if longest is not None and named.setdefault("max_tokens", longest) not in (None, longest):
        message = f"max_completion_tokens is {shown(longest)}, and max_tokens another number. Send one of them."
        raise Refusal(400, message, param="max_completion_tokens")
    if longest is not None:
        names[MAX_TOKENS] = "max_completion_tokens"
    name, structure = openai_structure(fields)
    names |= dict.fromkeys(structure, name)
    named |= structure
    if named.get("top_k") == -1:  # vLLM's value for all tokens
        named["top_k"] = 0
    settings = generation_settings(named, names)
    if not flag(fields, "ignore_eos"):
        return settings
    if settings.max_tokens is None:
        raise Refusal(400, "ignore_eos is true without a length. Send max_tokens, too.", param="ignore_eos")
    return replace(settings, min_tokens=settings.max_tokens)


def _seeded(settings: GenerationSettings, count: int) -> tuple[GenerationSettings, ...]:
    """Return the settings of each of `count` choices, whose seeds count up from the request's seed."""
    if settings.seed is None:
        return (settings,) * count
    return tuple(replace(settings, seed=(settings.seed + number) % 2**64) for number in range(count))


async def _answer(request: DialectRequest, style: Style, completion: Completion) -> bytes | Events:
    if completion.streams:
        return _stream(request, style, completion)
    generate = request.inference.generate
    results = await in_order([generate(completion.model, *one) for one in completion.texts])
    choices = [
        _choice(index, style.message(result.text), completion.logprobs(style)(result.tokens), result.finish_reason)
        for index, result in enumerate(results)
    ]
    content = {**completion.head, "object": style.whole, "choices": choices, "usage": _usage(completion, results)}
    return dumped(content)


async def _stream(request: DialectRequest, style: Style, completion: Completion) -> Events:
    streams = [request.inference.pieces(completion.model, *one) for one in completion.texts]
    pieces: list[list[Piece]] = [[] for _ in streams]
    forms = [completion.logprobs(style) for _ in streams]
    async with aclosing(interleaved(streams)) as arriving:
        async for index, piece in arriving:
            if not pieces[index] and style.opening:
                yield _chunk(style, completion, _choice(index, style.opening))
            pieces[index].append(replace(piece, text="", log_probs=(), tokens=()))
            logprobs = forms[index](piece.tokens)
            if piece.text or not piece.finish_reason or style is PLAIN:
                reason = piece.finish_reason if style is PLAIN else None
                yield _chunk(style, completion, _choice(index, style.delta(piece.text), logprobs, reason or None))
                logprobs = None
            if piece.finish_reason and style is not PLAIN:
                yield _chunk(style, completion, _choice(index, style.delta(""), logprobs, piece.finish_reason))
    if completion.has_usage:
        usage = _usage(completion, [joined(each) for each in pieces])
        yield event({**completion.head, "object": style.chunk, "choices": [], "usage": usage})
    yield DONE


def _choice(
    index: int, content: Mapping[str, Any], logprobs: Mapping[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}


def _chunk(style: Style, completion: Completion, choice: Mapping[str, Any]) -> bytes:
    return event({**completion.head, "object": style.chunk, "choices": [choice]})


def _usage(completion: Completion, results: Sequence[Generation]) -> dict[str, int]:
    """Return the numbers of tokens: those of each prompt counted once, and those of all texts."""
    prompt = sum(result.input_tokens for result in results[:: len(completion.choices)])
    written = sum(result.output_tokens for result in results)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


WRITING: Mapping[str, Any] = {
    **GENERATION,
    "model": str,
    "stream": bool,
    "stream_options": body("", include_usage=bool),
    "n": int,
    "ignore_eos": bool,
    **OPENAI_SCHEMAS,
}
COMPLETION = body("model prompt", prompt=str | list[str], **WRITING)
MESSAGES = array(body("role content", role=str, content=str | list[dict[str, Any]]))
CHAT_COMPLETION = body(
    "model messages",
    messages=MESSAGES,
    max_completion_tokens=int,
    top_logprobs=int,
    **{**WRITING, "logprobs": bool},
)
EMBEDDINGS = body(
    "model input",
    model=str,
    input=str | list[str],
    encoding_format={"enum": ["float", "base64"]},
    dimensions=int,
    prompt_name=str,
    prompt=str,
)
DIALECT = Dialect(
    "openai",
    (
        Route("GET", "/v1/models", list_models, "The served models."),
        Route("GET", "/v1/models/{model}", get_model, "A served model."),
        *routes("POST", "v1/completions", completions, "Texts that continue prompts; a stream on request.", COMPLETION),
        *routes(
            "POST",
            "v1/chat/completions",
            chat_completions,
            "The next message of a conversation; a stream on request.",
            CHAT_COMPLETION,
        ),
        *routes("POST", "v1/embeddings", embeddings, "The vectors of texts.", EMBEDDINGS),
    ),
    error,
    re.compile(rb"/v1(?:/.*)?|/models/[^/]+/v1/.*"),
)
