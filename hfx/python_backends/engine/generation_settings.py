"""The settings of a generation request: one row each, which everything that takes settings reads.

A new setting of decoding is a row here, a field of request.Settings and the code that reads it; one of texts is a row
here and a field of GenerationConfig (generation/settings.py). Imports nothing heavy, so that clients and exporters may
read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..parameters import nearest
from .checks import Check, boolean, integer, number, one_of, strings
from .errors import InvalidRequest

LONGEST_LANGUAGE = 64  # characters of a code
MOST_ALTERNATIVES = 20  # of a token, as in OpenAI's API


@dataclass(frozen=True)
class Setting:
    """One setting.

    `dtype` is that of its tensor in Triton, with one value or, where `is_list`, any number; empty for one that is not
    served. `default` holds where neither the request nor the model sets it. `check` knows its range.
    """

    name: str
    dtype: str
    default: Any
    check: Check
    doc: str
    is_list: bool = False


def _temperature(name: str, value: Any) -> float:
    if isinstance(value, (int, float)) and value == 0:
        raise InvalidRequest(name, value, "a number from 0.001 to 100; for the likeliest token, set do_sample to false")
    return float(number(0.001, 100)(name, value))


def _early_stopping(name: str, value: Any) -> Any:
    if not isinstance(value, bool) and value != "never":
        raise InvalidRequest(name, value, "true, false or 'never'")
    return value


def _language(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_LANGUAGE:
        raise InvalidRequest(name, value, "the code of a language that the model was trained with")
    return value


# What the engine reads. Upper limits of counts keep a request from asking for more than any engine has; those of
# floats keep float32 arithmetic finite.
DECODING: tuple[Setting, ...] = (
    Setting("max_tokens", "INT32", 256, integer(1), "new tokens at most"),
    Setting("min_tokens", "INT32", 0, integer(0), "new tokens at least"),
    Setting("num_beams", "INT32", 1, integer(1, 64), "beams to search with; 1: greedy, or sampling"),
    Setting("num_return_sequences", "", 1, integer(1, 64), "texts of one prompt; Triton's responses have one"),
    Setting("do_sample", "BOOL", False, boolean, "draw tokens, or take the likeliest"),
    Setting("temperature", "FP32", 1.0, _temperature, "of sampling: below 1 is safer, above 1 wilder"),
    Setting("top_k", "INT32", 50, integer(0), "sample from so many of the likeliest tokens; 0: from all"),
    Setting("top_p", "FP32", 1.0, number(0, 1), "sample from the likeliest tokens with this share together"),
    Setting("min_p", "FP32", 0.0, number(0, 1), "sample from tokens with at least this share of the likeliest's"),
    Setting("seed", "UINT64", 0, integer(0, 2**64 - 1), "the same seed gives the same text; drawn if not set"),
    Setting("repetition_penalty", "FP32", 1.0, number(0.01, 100), "above 1 is against tokens that were there before"),
    Setting("no_repeat_ngram_size", "INT32", 0, integer(0), "no sequence of so many tokens twice; 0: no such rule"),
    Setting("length_penalty", "FP32", 1.0, number(-10, 10), "of beams: the higher, the longer texts"),
    Setting("early_stopping", "STRING", False, _early_stopping, "of beams: true, false or never end early"),
)
# What is done to texts around it.
TEXTS: tuple[Setting, ...] = (
    # The end of a stream may have to wait for as many characters as a stop string has.
    Setting("stop_words", "STRING", (), strings(64, 512), "end before one of these texts", is_list=True),
    # None: "truncate" with an encoder, "error" without.
    Setting("long", "STRING", None, one_of("error", "truncate", "chunk"), "what becomes of a text that is too long"),
    Setting("merge", "STRING", "concat", one_of("concat", "recursive"), "how the answers of chunks become one"),
    Setting("overlap", "INT32", 1, integer(0, 16), "sentences that two chunks share"),
    Setting("source_lang", "STRING", None, _language, "language of the text, by the model's own code: fra_Latn, fr"),
    Setting("target_lang", "STRING", None, _language, "language of the answer"),
    Setting("return_log_probs", "BOOL", False, boolean, "return the log-probability of each token"),
    # None: no tokens.
    Setting("logprobs", "INT32", None, integer(0, MOST_ALTERNATIVES), "return tokens, with so many of the likeliest"),
)
SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in (*DECODING, *TEXTS)}
# Names of other servers: TensorRT-LLM's, transformers', OpenAI's.
ALIASES = {"beam_width": "num_beams", "max_new_tokens": "max_tokens", "stop": "stop_words"}
# Those with several values, by all their names.
LISTS = frozenset(name for name in (*SETTINGS, *ALIASES) if SETTINGS[ALIASES.get(name, name)].is_list)
# Settings of other servers that this engine lacks, which their clients send always: the values that change nothing.
NEUTRAL = {"frequency_penalty": 0, "presence_penalty": 0}


def by_all_names() -> dict[str, Setting]:
    """The settings by their names and aliases."""
    return {**SETTINGS, **{alias: SETTINGS[name] for alias, name in ALIASES.items()}}


def checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` by their own names, not their aliases; None means "not set".

    Raises InvalidRequest for a name that is not known and a value of the wrong type or out of range.
    """
    given: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name in NEUTRAL:
            _refuse_effect(name, value)
            continue
        field = ALIASES.get(name, name)
        if field not in SETTINGS:
            raise _unknown(name, value)
        if SETTINGS[field].is_list and isinstance(value, str):
            value = (value,)
        if field in given and given[field] != value:
            raise InvalidRequest(name, value, f"the value of {field}, as both are one field")
        given[field] = value
    return {name: _check(name, value) for name, value in given.items()}


def _check(name: str, value: Any) -> Any:
    if name == "temperature" and type(value) in (int, float) and value == 0:
        return 0.0  # no sampling: callers of other servers write it so
    return SETTINGS[name].check(name, value)


def _refuse_effect(name: str, value: Any) -> None:
    if type(value) not in (int, float) or value != NEUTRAL[name]:
        raise InvalidRequest(name, value, f"{NEUTRAL[name]}, as the engine lacks it; repetition_penalty is like it")


def _unknown(name: str, value: Any) -> InvalidRequest:
    near = nearest(name, [*SETTINGS, *ALIASES])
    hint = f"did you mean {ALIASES.get(near, near)}?" if near else f"fields are {', '.join(SETTINGS)}"
    return InvalidRequest(name, value, f"no such field; {hint}", f"There is no field {name}; {hint}")
