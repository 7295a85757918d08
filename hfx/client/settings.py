"""Merge, check and convert generation settings, given as GenerationSettings and keyword arguments, to input tensors.

This module checks the types of the settings, by the same table as the engine. The model checks their ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from hfx.errors import UsageError
from hfx.metadata import Value
from hfx.python_backends.checks import nearest
from hfx.python_backends.engine.generation_settings import ALIASES, LISTS, SETTINGS, to_text
from hfx.python_backends.errors import InvalidRequest

FIELDS = tuple(name for name, setting in SETTINGS.items() if setting.dtype)
TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "INT32": ((int,), "a whole number"),
    "UINT64": ((int,), "a whole number"),
    "FP32": ((int, float), "a number"),
    "BOOL": ((bool,), "True or False"),
}


def merged(settings: GenerationSettings | None, keywords: Settings) -> GenerationSettings:
    """Return `settings` overridden by `keywords`. Raises UsageError for an unknown keyword or a wrong type of value."""
    if settings is not None and not isinstance(settings, GenerationSettings):
        raise UsageError(
            f"The settings are of type {type(settings).__name__}.", "Give GenerationSettings(...), or keywords."
        )
    given = {} if settings is None else {name: getattr(settings, name) for name in FIELDS}
    chosen: dict[str, Any] = {}
    for alias, value in keywords.items():
        name = ALIASES.get(alias, alias)
        if name not in FIELDS:
            near = nearest(alias, FIELDS)
            hint = f"Did you mean {near}?" if near else f"Settings are {', '.join(FIELDS)}."
            raise UsageError(f"There is no setting {alias!r}.", hint)
        if value is None:
            continue
        if name != alias and name in LISTS and isinstance(value, str):  # OpenAI's `stop` may be one text
            value = [value]
        if chosen.setdefault(name, value) != value:
            raise UsageError(f"{alias} is {value!r}, but {name}, which is the same, {chosen[name]!r}.", "Give one.")
    return GenerationSettings(**given | chosen)


def setting_values(settings: GenerationSettings) -> dict[str, list[Value]]:
    """Return the values of all settings that are not None, by the names of their tensors."""
    given = {name: getattr(settings, name) for name in FIELDS}
    return {
        name: list(value) if name in LISTS else [to_text(name, value)]
        for name, value in given.items()
        if value is not None
    }


def _checked(name: str, value: Any) -> Any:
    """Return `value` of the setting `name`, a list as a tuple. Raises UsageError for a value of the wrong type."""
    setting = SETTINGS[name]
    if setting.is_list:
        if isinstance(value, str):
            raise UsageError(f"{name} is one text, {value!r}.", f"Give a list: [{value!r}].")
        value = value if setting.is_keyed and isinstance(value, Mapping) else tuple(value)
    types, allowed = ((), "") if setting.is_list else TYPES.get(setting.dtype, ((), ""))
    if type(value) in types:
        return value
    try:
        if not types:
            return setting.check(name, value)
    except InvalidRequest as refusal:
        allowed = refusal.allowed
    raise UsageError(f"{name} is {value!r:.80}.", f"Give {allowed}.")


# What follows is made by `make docs` from the table in hfx/python_backends/engine/generation_settings.py: change that.


@dataclass(frozen=True)
class GenerationSettings:
    """How a text is generated; what is None is as the model's generation_config.json says.

    `max_tokens`            Maximum number of new tokens (a whole number of at least 1)
    `min_tokens`            Minimum number of new tokens (a whole number of at least 0)
    `num_beams`             Number of beams; 1: no beam search (a whole number from 1 to 64)
    `do_sample`             Sample tokens, or take the likeliest; sampling is on if any sampling setting is given,
                            unless beams are the model's default
    `temperature`           Sampling: values below 1 favour likely tokens, values above 1 unlikely ones; 0 turns
                            sampling off (a number from 0.001 to 100, or 0 for do_sample false)
    `top_k`                 Sampling: draw from this many of the likeliest tokens; 0: from all (a whole number of at
                            least 0)
    `top_p`                 Sampling: draw from the likeliest tokens that together have this probability (a number from
                            0 to 1)
    `min_p`                 Sampling: minimum probability of a token, relative to the likeliest one (a number from 0 to
                            1)
    `typical_p`             Sampling: draw from the most typical tokens that together have this probability (locally
                            typical sampling) (a number from 0.001 to 1)
    `epsilon_cutoff`        Sampling: draw only from tokens with at least this probability (and the likeliest) (a number
                            from 0 to 0.999)
    `seed`                  The same seed gives the same text; random by default (a whole number from 0 to
                            18446744073709551615)
    `repetition_penalty`    Values above 1 penalize tokens that occurred before (a number from 0.01 to 100)
    `frequency_penalty`     Subtracted from a token's logit for each time it was generated (a number from -2 to 2)
    `presence_penalty`      Subtracted from the logit of every token already generated (a number from -2 to 2)
    `logit_bias`            Added to the logits of tokens: ID:NUMBER (at most 1024 pairs of a token's id and a number)
    `no_repeat_ngram_size`  Never repeat a sequence of this many tokens; 0: off (a whole number of at least 0)
    `length_penalty`        Beam search: values above 0 favour longer texts, values below 0 shorter ones (a number from
                            -10 to 10)
    `early_stopping`        Beam search: stop once there are enough texts (true), or once better ones are unlikely
                            (false) or impossible (never)
    `stop_words`            Stop before any of these texts, each of 1 to 512 characters (a list of at most 64 texts)
    `long`                  What to do with a text that is too long; chunk (encoder-decoders) answers it part by part
    `merge`                 Chunks: how to join their answers; recursive: answer the joined answers again
    `overlap`               Chunks: number of sentences that neighbours share (a whole number from 0 to 16)
    `json_schema`           Structured output: the answer is JSON that conforms to this JSON schema
    `regex`                 Structured output: the whole answer matches this regular expression
    `choices`               Structured output: the answer is one of these texts (a list of at most 1024 texts)
    `source_lang`           Translation: language of the text, by the model's own code: fra_Latn, fr_XX, fr
    `target_lang`           Translation: language of the answer, by the model's own code
    `add_special_tokens`    Add the tokenizer's special tokens; false for a text that already has them
    `return_log_probs`      Return the log-probabilities of the tokens
    `logprobs`              Return the tokens, and for each position this many of the likeliest tokens; not with beams
                            (a whole number from 0 to 20)
    `prompt_logprobs`       The same for the prompt's tokens, if the model continues its prompt (a whole number from 0
                            to 20)
    `prompt_token_ids`      The prompt as token ids, special tokens included, in place of a text (token ids, which are
                            whole numbers of at least 0)
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    num_beams: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] | Iterable[str] | None = None
    no_repeat_ngram_size: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    stop_words: Iterable[str] | None = None
    long: Literal["error", "truncate", "chunk"] | None = None
    merge: Literal["concat", "recursive"] | None = None
    overlap: int | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    choices: Iterable[str] | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    add_special_tokens: bool | None = None
    return_log_probs: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_token_ids: Iterable[int] | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        for name, value in given.items():
            object.__setattr__(self, name, _checked(name, value))


class Settings(TypedDict, total=False):
    """The fields of GenerationSettings, and aliases of other servers, as keyword arguments."""

    max_tokens: int | None
    min_tokens: int | None
    num_beams: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    seed: int | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | Iterable[str] | None
    no_repeat_ngram_size: int | None
    length_penalty: float | None
    early_stopping: bool | Literal["never"] | None
    stop_words: Iterable[str] | None
    long: Literal["error", "truncate", "chunk"] | None
    merge: Literal["concat", "recursive"] | None
    overlap: int | None
    json_schema: str | dict[str, Any] | None
    regex: str | None
    choices: Iterable[str] | None
    source_lang: str | None
    target_lang: str | None
    add_special_tokens: bool | None
    return_log_probs: bool | None
    logprobs: int | None
    prompt_logprobs: int | None
    prompt_token_ids: Iterable[int] | None
    # Names of other servers.
    max_new_tokens: int | None
    min_new_tokens: int | None
    beam_width: int | None
    stop: str | Iterable[str] | None
    stop_strings: str | Iterable[str] | None
