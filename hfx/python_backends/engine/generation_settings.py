"""The table of generation settings, which all code that takes settings reads.

A row is a field of Decoding or Texts: the field has the name, the type and the default; its Setting has the rest. The
table defines the tensors, the options of `hfx infer`, the keywords of the client (`make docs` writes them), the
parameters of the HTTP APIs, the fields that are read from generation_config.json, the forms of the playground and the
pages of the documentation. To add a setting, add a row here and the code that implements it. The module imports nothing
heavy, so that clients and exporters can use it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import UnionType
from typing import Any, Literal, Optional, TypeVar, Union, get_args, get_origin, get_type_hints

from ..checks import NAME_LENGTH, Check, Ids, at_most, boolean, integer, nearest, number, one_of, strings, token_ids
from ..errors import InvalidRequest

LONGEST_LANGUAGE = 64  # characters of a language code
MOST_ALTERNATIVES = 20  # per token, as in OpenAI's API
MOST_BIASES, LARGEST_BIAS = 1024, 100
BIAS = re.compile(r"([0-9]{1,10}):([^:\s]{1,30})")
# The scopes of settings that matter only to some requests.
SAMPLING, BEAMS, CHUNKS, TRANSLATION = "Sampling", "Beam search", "Chunks", "Translation"
STRUCTURE = "Structured output"
LONGEST_GRAMMAR = 2**16  # characters of a schema, of a regular expression, or of all choices together
MOST_CHOICES, LONGEST_CHOICE = 1024, 4096  # the second in characters

MOST_IDS = 2**17  # of a prompt, or of all prompts of a request: millions would delay other requests while they are read

ROW = "row"  # the key of a field's metadata

Value = TypeVar("Value")
EarlyStopping = Union[bool, Literal["never"]]
Long = Literal["error", "truncate", "chunk"]
Merge = Literal["concat", "recursive"]


@dataclass(frozen=True)
class Setting:
    """A row of the table: a setting's tensor, range, meaning and scope.

    `dtype` is the data type of the setting's tensor in Triton; empty if the setting is not served. The tensor has one
    value or, if `is_list`, any number of values. `check` checks the range. `scope` names the feature that reads the
    setting; it is empty if every request reads it. `aliases` are its names in other servers. `off` is the value that
    does nothing (None: the default). `is_keyed` says that the setting is a list of KEY:VALUE, which may be given as a
    mapping. `name`, `default` (used if neither the request nor the model sets a value) and `type` (of a value, None
    aside) are taken from the field.
    """

    dtype: str
    check: Check
    doc: str
    scope: str = ""
    aliases: tuple[str, ...] = ()
    off: Any = None
    is_keyed: bool = False
    name: str = ""
    default: Any = None
    type: Any = None

    @property
    def is_list(self) -> bool:
        """Whether the setting has any number of values."""
        return get_origin(self.type) is tuple

    @property
    def item(self) -> type:
        """The type of each of the values, if there may be several."""
        return get_args(self.type)[0]

    @property
    def choices(self) -> tuple[Any, ...]:
        """All possible values, if they are few enough to list; else empty."""
        return _choices(self.type)

    @property
    def text(self) -> str:
        """The meaning of the setting, with its scope, if it has one, before it."""
        return f"{self.scope}: {self.doc}" if self.scope else self.doc[0].upper() + self.doc[1:]

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        try:
            self.check(self.name, object())
        except InvalidRequest as refusal:
            return refusal.allowed
        return ""


def _temperature(name: str, value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0.001 <= value <= 100:
        return float(value)
    raise InvalidRequest(name, value, "a number from 0.001 to 100, or 0 for do_sample false")


def _early_stopping(name: str, value: Any) -> Any:
    if not isinstance(value, bool) and value != "never":
        raise InvalidRequest(name, value, "true, false or 'never'")
    return value


def _grammar(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_GRAMMAR:
        raise InvalidRequest(name, value, f"a text of 1 to {LONGEST_GRAMMAR} characters")
    return value


def _json_schema(name: str, value: Any) -> str:
    """Return a schema, which may be JSON text or an object, as JSON text."""
    try:
        return _grammar(name, json.dumps(value) if isinstance(value, dict) else value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(name, value, f"a JSON schema, as JSON text or as an object ({error})") from None


def _choices_of(name: str, value: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = strings(MOST_CHOICES, LONGEST_CHOICE)(name, value)
    if sum(map(len, found)) > LONGEST_GRAMMAR:
        raise InvalidRequest(name, value, f"texts of {LONGEST_GRAMMAR} characters in all")
    return found


def _language(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_LANGUAGE:
        raise InvalidRequest(name, value, "the code of a language that the model was trained with")
    return value


def _logit_bias(name: str, value: Any) -> tuple[str, ...]:
    """Return biases as ID:NUMBER pairs. They may be given as such pairs, or as a mapping of token ids to numbers."""
    pairs = [f"{key}:{number}" for key, number in value.items()] if isinstance(value, Mapping) else value
    if not isinstance(pairs, (list, tuple)) or len(pairs) > MOST_BIASES:
        raise InvalidRequest(name, value, f"at most {MOST_BIASES} pairs of a token's id and a number")
    biases = dict(_bias(name, pair) for pair in pairs)
    if len(biases) < len(pairs):
        raise InvalidRequest(name, value, "a list with each token once")
    return tuple(f"{token}:{number}" for token, number in biases.items())


def _bias(name: str, pair: Any) -> tuple[int, float]:
    found = BIAS.fullmatch(pair) if isinstance(pair, str) else None
    try:
        if found and abs(number := float(found[2])) <= LARGEST_BIAS:
            return int(found[1]), number
    except ValueError:
        pass
    allowed = f"a token's id and a number from -{LARGEST_BIAS} to {LARGEST_BIAS}, as {{50256: -100}} or 50256:-100"
    raise InvalidRequest(name, pair, allowed)


def logit_biases(setting: tuple[str, ...]) -> dict[int, float]:
    """Return the checked value of `logit_bias` as a dictionary of token ids and numbers."""
    return {int(token): float(number) for token, _, number in (pair.partition(":") for pair in setting)}


def setting(default: Value, dtype: str, check: Check, doc: str, scope: str = "", **others: Any) -> Value:
    """Return a field of the table, with its default and its Setting."""
    return field(default=default, metadata={ROW: Setting(dtype, check, doc, scope, **others)})


# Upper limits of counts keep a request from exceeding what any engine has. Upper limits of floats keep float32
# arithmetic finite.


@dataclass(frozen=True)
class Decoding:
    """The settings that the engine reads.

    The settings that transformers' `generate` also has mean the same there. `seed`, `logit_bias`, `frequency_penalty`
    and `presence_penalty` are not among them.
    """

    max_tokens: int = setting(256, "INT32", integer(1), "maximum number of new tokens", aliases=("max_new_tokens",))
    min_tokens: int = setting(0, "INT32", integer(0), "minimum number of new tokens", aliases=("min_new_tokens",))
    num_beams: int = setting(1, "INT32", integer(1, 64), "number of beams; 1: no beam search", aliases=("beam_width",))
    num_return_sequences: int = setting(
        1, "", integer(1, 64), "number of texts per prompt; only with `hfx infer --local`"
    )
    do_sample: bool = setting(
        False,
        "BOOL",
        boolean,
        "sample tokens, or take the likeliest; sampling is on if any sampling setting is given, unless beams are the "
        "model's default",
    )
    temperature: float = setting(
        1.0,
        "FP32",
        _temperature,
        "values below 1 favour likely tokens, values above 1 unlikely ones; 0 turns sampling off",
        SAMPLING,
    )
    top_k: int = setting(
        50, "INT32", integer(0), "draw from this many of the likeliest tokens; 0: from all", SAMPLING, off=0
    )
    top_p: float = setting(
        1.0, "FP32", number(0, 1), "draw from the likeliest tokens that together have this probability", SAMPLING
    )
    min_p: float = setting(
        0.0, "FP32", number(0, 1), "minimum probability of a token, relative to the likeliest one", SAMPLING
    )
    typical_p: float = setting(
        1.0,
        "FP32",
        number(0.001, 1),
        "draw from the most typical tokens that together have this probability (locally typical sampling)",
        SAMPLING,
    )
    epsilon_cutoff: float = setting(
        0.0,
        "FP32",
        number(0, 0.999),
        "draw only from tokens with at least this probability (and the likeliest)",
        SAMPLING,
    )
    seed: int = setting(0, "UINT64", integer(0, 2**64 - 1), "the same seed gives the same text; random by default")
    repetition_penalty: float = setting(
        1.0, "FP32", number(0.01, 100), "values above 1 penalize tokens that occurred before"
    )
    frequency_penalty: float = setting(
        0.0, "FP32", number(-2, 2), "subtracted from a token's logit for each time it was generated"
    )
    presence_penalty: float = setting(
        0.0, "FP32", number(-2, 2), "subtracted from the logit of every token already generated"
    )
    logit_bias: tuple[str, ...] = setting(
        (), "STRING", _logit_bias, "added to the logits of tokens: ID:NUMBER", is_keyed=True
    )
    no_repeat_ngram_size: int = setting(0, "INT32", integer(0), "never repeat a sequence of this many tokens; 0: off")
    length_penalty: float = setting(
        1.0, "FP32", number(-10, 10), "values above 0 favour longer texts, values below 0 shorter ones", BEAMS
    )
    early_stopping: EarlyStopping = setting(  # noqa: RUF009
        False,
        "STRING",
        _early_stopping,
        "stop once there are enough texts (true), or once better ones are unlikely (false) or impossible (never)",
        BEAMS,
    )


@dataclass(frozen=True)
class Texts:
    """The settings that the engine does not read.

    They concern the texts before and after decoding, structured outputs, and what an answer returns.
    """

    # A stream may have to hold back as many characters as a stop string has.
    stop_words: tuple[str, ...] = setting(
        (),
        "STRING",
        strings(64, 512),
        "stop before any of these texts, each of 1 to 512 characters",
        aliases=("stop", "stop_strings"),
    )
    # None: "truncate" with an encoder, "error" without.
    long: Optional[Long] = setting(  # noqa: RUF009
        None,
        "STRING",
        one_of(*get_args(Long)),
        "what to do with a text that is too long; chunk (encoder-decoders) answers it part by part",
    )
    merge: Merge = setting(  # noqa: RUF009
        "concat",
        "STRING",
        one_of(*get_args(Merge)),
        "how to join their answers; recursive: answer the joined answers again",
        CHUNKS,
    )
    overlap: int = setting(1, "INT32", integer(0, 16), "number of sentences that neighbours share", CHUNKS)
    json_schema: Optional[Union[str, dict[str, Any]]] = setting(  # noqa: RUF009
        None, "STRING", _json_schema, "the answer is JSON that conforms to this JSON schema", STRUCTURE
    )
    regex: Optional[str] = setting(
        None, "STRING", _grammar, "the whole answer matches this regular expression", STRUCTURE
    )
    choices: tuple[str, ...] = setting((), "STRING", _choices_of, "the answer is one of these texts", STRUCTURE)
    source_lang: Optional[str] = setting(
        None, "STRING", _language, "language of the text, by the model's own code: fra_Latn, fr_XX, fr", TRANSLATION
    )
    target_lang: Optional[str] = setting(
        None, "STRING", _language, "language of the answer, by the model's own code", TRANSLATION
    )
    add_special_tokens: bool = setting(
        True, "BOOL", boolean, "add the tokenizer's special tokens; false for a text that already has them"
    )
    return_log_probs: bool = setting(False, "BOOL", boolean, "return the log-probabilities of the tokens")
    # None: tokens are not returned.
    logprobs: Optional[int] = setting(
        None,
        "INT32",
        integer(0, MOST_ALTERNATIVES),
        "return the tokens, and for each position this many of the likeliest tokens; not with beams",
    )
    # None: the prompt's tokens are not returned.
    prompt_logprobs: Optional[int] = setting(
        None,
        "INT32",
        integer(0, MOST_ALTERNATIVES),
        "the same for the prompt's tokens, if the model continues its prompt",
    )
    prompt_token_ids: Ids = setting(  # noqa: RUF009
        (),
        "INT32",
        at_most(MOST_IDS, token_ids),
        "the prompt as token ids, special tokens included, in place of a text",
    )


def _choices(kind: Any) -> tuple[Any, ...]:
    if kind is bool:
        return (True, False)
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(choice for part in _parts(kind) for choice in _choices(part))


def _parts(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()


def _rows(table: Any) -> tuple[Setting, ...]:
    types = get_type_hints(table)
    return tuple(_row(each.metadata[ROW], each.name, each.default, types[each.name]) for each in fields(table))


def _row(row: Setting, name: str, default: Any, kind: Any) -> Setting:
    parts = tuple(part for part in _parts(kind) if part is not type(None))
    off = default if row.off is None else row.off
    return replace(row, name=name, default=default, off=off, type=Union[parts] if parts else kind)


DECODING = _rows(Decoding)
TEXTS = _rows(Texts)
SETTINGS: Mapping[str, Setting] = {row.name: row for row in (*DECODING, *TEXTS)}
# Names in other servers: TensorRT-LLM's, transformers', OpenAI's.
ALIASES: Mapping[str, str] = {alias: row.name for row in SETTINGS.values() for alias in row.aliases}
BY_ALL_NAMES: Mapping[str, Setting] = {**SETTINGS, **{alias: SETTINGS[name] for alias, name in ALIASES.items()}}
# The settings with several values, by all their names.
LISTS = frozenset(name for name, row in BY_ALL_NAMES.items() if row.is_list)
# The settings whose tensor has true and false as texts, because the setting has a value that is a text, too.
FLAGS = frozenset(row.name for row in SETTINGS.values() if row.dtype == "STRING" and True in row.choices)


def of_scope(scope: str) -> tuple[str, ...]:
    """Return the names of the settings with this scope."""
    return tuple(row.name for row in SETTINGS.values() if row.scope == scope)


def from_text(name: str, value: Any) -> Any:
    """Convert the value of a tensor or an option to a value of the table: true and false of FLAGS become booleans."""
    return value == "true" if name in FLAGS and value in ("true", "false") else value


def to_text(name: str, value: Any) -> Any:
    """Convert the value of a setting to its tensor's: an object becomes JSON, and booleans of FLAGS become texts."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if name in FLAGS and isinstance(value, bool) else value


def checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked `fields`, with their own names in place of aliases. None means "not set".

    Raises InvalidRequest, which names the field as the caller does, for an unknown name, and for a value of the wrong
    type or out of range.
    """
    given: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in fields.items():
        if value is None:
            continue
        own = ALIASES.get(name, name)
        if own not in SETTINGS:
            raise _unknown(name, value)
        if SETTINGS[own].is_list and isinstance(value, str):
            value = (value,)
        if own in given and given[own] != value:
            raise InvalidRequest(name, value, f"equal to {own}, as both are one field")
        given[own], names[own] = value, name
    return {own: _check(own, names[own], value) for own, value in given.items()}


def _check(own: str, name: str, value: Any) -> Any:
    if own == "temperature" and type(value) in (int, float) and value == 0:
        return 0.0  # callers of other servers turn sampling off like this
    return SETTINGS[own].check(name, value)


def _unknown(name: str, value: Any) -> InvalidRequest:
    name = name[:NAME_LENGTH]
    near = nearest(name, [*SETTINGS, *ALIASES])
    hint = f"did you mean {ALIASES.get(near, near)}?" if near else f"fields are {', '.join(SETTINGS)}"
    return InvalidRequest(name, value, "", f"There is no field {name}; {hint}")
