"""How a generator writes: one frozen value, given as an object or as keyword arguments.

Types are checked here, by the table of settings that the engine has too; ranges by the model, and named for readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

from hfx.errors import UsageError
from hfx.metadata import Value
from hfx.names import EARLY_STOPPING, STOP_WORDS
from hfx.python_backends.engine.errors import InvalidRequest
from hfx.python_backends.engine.generation_settings import ALIASES, LISTS, SETTINGS
from hfx.python_backends.parameters import nearest

EarlyStopping = bool | Literal["never"]
Long = Literal["truncate", "chunk", "error"]
Merge = Literal["concat", "recursive"]


class Settings(TypedDict, total=False):
    """GenerationSettings as keyword arguments."""

    max_tokens: int | None
    min_tokens: int | None
    num_beams: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    stop_words: Iterable[str] | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    long: Long | None
    merge: Merge | None
    overlap: int | None
    source_lang: str | None
    target_lang: str | None
    return_log_probs: bool | None
    logprobs: int | None
    # Names of other servers, for max_tokens, stop_words and num_beams.
    max_new_tokens: int | None
    stop: str | Iterable[str] | None
    beam_width: int | None


@dataclass(frozen=True)
class GenerationSettings:
    """How a text is generated; what is None is as the model's generation_config.json says.

    `max_tokens`            new tokens at most, from 1 to what the model holds
    `min_tokens`            new tokens at least, from 0 to max_tokens
    `num_beams`             beams to search with, from 1 (greedy, or sampling) to 64
    `do_sample`             draw tokens (True) or take the likeliest (False); without it, tokens are drawn if a setting
                            of sampling is given (one of the next four; temperature 0: not)
    `temperature`           of sampling, from 0.001 to 100: below 1 is safer, above 1 wilder
    `top_k`                 sample from so many of the likeliest tokens; 0: from all
    `top_p`                 sample from the likeliest tokens with this share together, from 0 to 1
    `min_p`                 sample from tokens with at least this share of the likeliest's, from 0 to 1
    `seed`                  from 0 to 2⁶⁴-1: the same seed gives the same text; drawn if not given
    `stop_words`            end before one of these texts: up to 64, each of 1 to 512 characters
    `repetition_penalty`    above 1 is against tokens that were there before, from 0.01 to 100
    `no_repeat_ngram_size`  no sequence of so many tokens twice; 0: no such rule
    `length_penalty`        of beams, from -10 to 10: the higher, the longer texts
    `early_stopping`        of beams: end with enough texts (True), when it looks good (False), or "never" early
    `long`                  a text that is too long for the model: "truncate", "chunk" (encoder-decoders only: its parts
                            one by one, their answers merged) or "error"
    `merge`                 of chunks: "concat" their answers, or summarize these again ("recursive")
    `overlap`               of chunks: sentences that two share, from 0 to 16
    `source_lang`           of a translator: the language of the text, by the model's own code ("fra_Latn", "fr_XX")
    `target_lang`           of a translator: the language of the answer
    `return_log_probs`      return the log-probability of each token
    `logprobs`              return the tokens, each with its id, text and log-probability, and with so many of the most
                            probable ones in its place, from 0 to 20; without beams
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    num_beams: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop_words: Iterable[str] | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    long: Long | None = None
    merge: Merge | None = None
    overlap: int | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    return_log_probs: bool | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop_words, str):
            raise UsageError(f"stop_words is one text, {self.stop_words!r}.", f"Give a list: [{self.stop_words!r}].")
        if self.stop_words is not None:
            object.__setattr__(self, "stop_words", tuple(self.stop_words))
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (allowed := _allowed(field.name, value)):
                raise UsageError(f"{field.name} is {value!r}.", f"Give {allowed}.")


FIELDS = tuple(field.name for field in fields(GenerationSettings))
TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "INT32": ((int,), "a whole number"),
    "UINT64": ((int,), "a whole number"),
    "FP32": ((int, float), "a number"),
    "BOOL": ((bool,), "True or False"),
}


def merged(settings: GenerationSettings | None, keywords: Settings) -> GenerationSettings:
    """`settings` with `keywords`, which win; raises UsageError for a keyword or value that can't be."""
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
    """What is set, under the names of its tensors."""
    given = {name: getattr(settings, name) for name in FIELDS}
    return {name: _values(name, value) for name, value in given.items() if value is not None}


def _values(name: str, value: Any) -> list[Value]:
    if name == EARLY_STOPPING:  # a text, as it has a third value
        return [str(value).lower()]
    return list(value) if name == STOP_WORDS else [value]


def _allowed(name: str, value: Any) -> str:
    """What the setting takes; empty if it takes `value`."""
    setting = SETTINGS[name]
    if setting.dtype in TYPES:
        types, allowed = TYPES[setting.dtype]
        return "" if type(value) in types else allowed
    try:
        setting.check(name, value)
    except InvalidRequest as refusal:
        return refusal.allowed
    return ""
