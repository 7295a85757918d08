"""The fields that a caller may set: their public names, and each value checked on its own.

Owns names, aliases and the ranges of what the engine does not know; the engine's own ranges are asked of its Settings.
Knows neither the model nor what its defaults are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from ..engine.errors import InvalidRequest
from ..engine.request import Settings

# Fields of the engine's Settings under the same name.
ENGINE_FIELDS = (
    "max_tokens", "min_tokens", "num_beams", "num_return_sequences", "do_sample", "temperature", "top_k", "top_p",
    "min_p", "seed", "repetition_penalty", "no_repeat_ngram_size", "length_penalty", "early_stopping",
)  # fmt: skip
# What else there is: `long` says what becomes of a text that is too long for the model, `merge` and `overlap` how the
# parts of one are put together and how many sentences they share; the languages are those of a translation.
LANGUAGE_FIELDS = ("source_lang", "target_lang")
TEXT_FIELDS = ("stop_words", "return_log_probs", "long", "merge", "overlap", *LANGUAGE_FIELDS)
FIELDS = (*ENGINE_FIELDS, *TEXT_FIELDS)
ALIASES = {"beam_width": "num_beams"}

LONG = ("error", "truncate", "chunk")
MERGE = ("concat", "recursive")
MOST_OVERLAP = 16
MOST_STOP_WORDS = 64
LONGEST_STOP_WORD = 512  # characters; the end of a stream may have to wait for so many
LONGEST_LANGUAGE = 64  # characters of a code


def checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` by their own names, not their aliases; None means "not set".

    Raises InvalidRequest for a name that is not known and a value of the wrong type or out of range.
    """
    given: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        field = ALIASES.get(name, name)
        if field not in FIELDS:
            raise InvalidRequest(name, value, f"no such field; {_suggestion(name)}")
        if field in given and given[field] != value:
            raise InvalidRequest(name, value, f"the value of {field}, as both are one field")
        given[field] = value
    return {field: _CHECKS[field](field, value) for field, value in given.items()}


def _suggestion(name: str) -> str:
    names = [*FIELDS, *ALIASES]
    near = [field for field in names if field.startswith(name)] or get_close_matches(name, names, 1, 0.5)
    return f"did you mean {near[0]}?" if near else f"fields are {', '.join(FIELDS)}"


def _engine_field(name: str, value: Any) -> Any:
    """A value as Settings takes it, beside others that contradict none."""
    if name == "temperature" and type(value) in (int, float) and value == 0:
        return 0.0  # no sampling: callers of other servers write it so
    neutral: dict[str, Any] = {"max_tokens": 2**31, "do_sample": name != "num_beams"}
    return getattr(Settings(**(neutral | {name: value})), name)


def _one_of(allowed: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in allowed:
            raise InvalidRequest(name, value, " or ".join(allowed))
        return str(value)

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(name, value, "true or false")
    return value


def _overlap(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_OVERLAP:
        raise InvalidRequest(name, value, f"a whole number from 0 to {MOST_OVERLAP}")
    return value


def _language(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_LANGUAGE:
        raise InvalidRequest(name, value, "the code of a language that the model was trained with")
    return value


def _stop_words(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > MOST_STOP_WORDS:
        raise InvalidRequest(name, value, f"a list of at most {MOST_STOP_WORDS} texts")
    for word in value:
        if not isinstance(word, str) or not 0 < len(word) <= LONGEST_STOP_WORD:
            raise InvalidRequest(name, word, f"texts of 1 to {LONGEST_STOP_WORD} characters")
    return tuple(dict.fromkeys(value))


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(ENGINE_FIELDS, _engine_field),
    "stop_words": _stop_words,
    "return_log_probs": _flag,
    "long": _one_of(LONG),
    "merge": _one_of(MERGE),
    "overlap": _overlap,
    **dict.fromkeys(LANGUAGE_FIELDS, _language),
}
