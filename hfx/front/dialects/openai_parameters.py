"""The fields of requests to OpenAI's API, and the parameters of a generator, with vLLM's extensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hfx.client.settings import GenerationSettings
from hfx.front.fields import Fields, generation_settings
from hfx.front.refusals import invalid, shown
from hfx.front.schemas import GENERATION, body
from hfx.front.structured_output import OPENAI, OPENAI_SCHEMAS, openai_structure
from hfx.names import LOGPROBS, MAX_TOKENS, PROMPT_LOGPROBS
from hfx.python_backends.engine.generation_settings import ALIASES
from hfx.tasks.transformers_settings import LACKING

IGNORED = {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"}
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
        ("allowed_token_ids", "chat_template", "guided_grammar", PROMPT_LOGPROBS, "truncate_prompt_tokens"), ()
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
OWN = {
    "model", "prompt", "messages", "stream", "stream_options", "n", "logprobs", "top_logprobs", "max_completion_tokens",
    "ignore_eos", *OPENAI,
}  # fmt: skip


def without_ignored(fields: Fields) -> Fields:
    """Return `fields` without IGNORED: their values may be large, and would be kept for the whole request."""
    for name in IGNORED:
        fields.pop(name, None)
    return fields


def settings(fields: Fields, names: dict[str, str]) -> GenerationSettings:
    """Return the settings in `fields`, and add the caller's names of fields to `names`. Raises Refusal (400)."""
    fields.refuse_unsupported(NEUTRAL)
    if fields.get("top_logprobs"):
        names[LOGPROBS] = "top_logprobs"
    named = {name: value for name, value in fields.items() if name not in OWN | NEUTRAL.keys()}
    longest = fields.get("max_completion_tokens")
    if longest is not None:
        if named.setdefault("max_tokens", longest) not in (None, longest):
            message = f"max_completion_tokens is {shown(longest)}, and max_tokens another number. Send one of them."
            raise invalid(message, "max_completion_tokens")
        names[MAX_TOKENS] = "max_completion_tokens"
    name, structure = openai_structure(fields)
    names |= dict.fromkeys(structure, name)
    named |= structure
    if named.get("top_k") == -1:  # vLLM's value for all tokens
        named["top_k"] = 0
    read = generation_settings(named, names)
    if not fields.flag("ignore_eos"):
        return read
    if read.max_tokens is None:
        raise invalid("ignore_eos is true without a length. Send max_tokens, too.", "ignore_eos")
    return replace(read, min_tokens=read.max_tokens)


# The settings of generators that have no field of another name.
OF_MODELS: Mapping[str, Any] = {
    name: kind for name, kind in GENERATION.items() if name not in OWN and ALIASES.get(name, name) != MAX_TOKENS
}
SCHEMAS: Mapping[str, Any] = {
    **GENERATION,
    "model": str,
    "stream": bool,
    "stream_options": body("", include_usage=bool),
    "n": int,
    "ignore_eos": bool,
    **OPENAI_SCHEMAS,
}
