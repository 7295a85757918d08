"""generation.json: the task of a generation model, its limits, default settings and the tokens with a meaning.

Owns the format of the file and reads it strictly: a field that is missing, unknown or not as it should be is an error
that names it. Knows nothing of requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Union

from ..engine.errors import InvalidRequest, ModelDamaged
from .fields import checked

FILE_NAME = "generation.json"
FORMAT = 1

TASKS = ("text-generation", "summarization", "text2text-generation", "translation")
DECODER = "decoder"
ENCODER_DECODER = "encoder-decoder"
TARGETS = ("forced_bos_token_id", "decoder_start_token_ids")

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Languages:
    """The languages that a model translates between, as token ids by code.

    That of the source is the first (`source_index` 0) or last (-1) of a text's tokens, special ones included; None
    where there is none. That of the target takes the place of the configuration's field `target`, one of TARGETS.
    """

    ids: Mapping[str, int]
    source_index: int | None
    target: str


@dataclass(frozen=True)
class Configuration:
    """What generation.json says, under the names that it has there.

    `max_length` are the positions of the decoder (prompt and output together), `max_source` those of the encoder (None
    without one). `default_max_length` bounds prompt and output together where a request sets no max_tokens (None: the
    default of max_tokens does). `defaults` are fields (fields.py), checked. `prefix` goes before every text.
    `languages` is None where a request can't choose any.
    """

    task: str
    kind: str
    max_length: int
    max_source: int | None
    default_max_length: int | None
    defaults: Mapping[str, Any]
    eos_token_ids: Ids
    pad_token_id: int
    bos_token_id: int | None
    decoder_start_token_ids: Ids
    forced_bos_token_id: int | None
    forced_eos_token_id: int | None
    suppress_tokens: Ids
    begin_suppress_tokens: Ids
    bad_words_ids: tuple[Ids, ...]
    bad_words_at_start: bool
    renormalize_logits: bool
    prefix: str
    languages: Languages | None
    clean_up_tokenization_spaces: bool
    special_token_ids: Ids

    @property
    def has_encoder(self) -> bool:
        """Whether texts go to an encoder; else they are what the model continues."""
        return self.kind == ENCODER_DECODER

    @property
    def most_tokens(self) -> int:
        """The most new tokens that any request can ask for."""
        return self.max_length - max(len(self.decoder_start_token_ids), 1)

    @classmethod
    def read(cls, folder: Path) -> Configuration:
        """The configuration in `folder`. Raises ModelDamaged, naming the file and the field."""
        path = folder / FILE_NAME
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelDamaged(f"{path} can't be read: {error}", "Export the model again") from None
        try:
            return cls.of(facts)
        except ValueError as error:
            raise ModelDamaged(f"{path}: {error}", "Export the model again") from None

    @classmethod
    def of(cls, facts: object) -> Configuration:
        """The configuration of what the file holds. Raises ValueError, naming the field."""
        if not isinstance(facts, dict):
            raise ValueError("it holds no JSON object")
        if facts.get("format") != FORMAT:
            raise ValueError(f"format is {facts.get('format')!r}, not {FORMAT}: another version of hfx has written it")
        for name in facts.keys() - _CHECKS.keys() - {"format"}:
            raise ValueError(f"{name} is not a field of this format")
        for name in _CHECKS.keys() - facts.keys():
            raise ValueError(f"{name} is missing")
        configuration = cls(**{name: check(name, facts[name]) for name, check in _CHECKS.items()})
        _refuse_contradictions(configuration)
        return configuration


def _refuse_contradictions(configuration: Configuration) -> None:
    if configuration.has_encoder != (configuration.max_source is not None):
        raise ValueError(f"max_source is {configuration.max_source}, but kind is {configuration.kind}")
    if configuration.has_encoder != bool(configuration.decoder_start_token_ids):
        ids = list(configuration.decoder_start_token_ids)
        raise ValueError(f"decoder_start_token_ids is {ids}, but kind is {configuration.kind}")
    if configuration.default_max_length is not None and configuration.has_encoder:
        raise ValueError(f"default_max_length is {configuration.default_max_length}, but kind is {configuration.kind}")
    if configuration.languages and not configuration.has_encoder:
        raise ValueError(f"languages are set, but kind is {configuration.kind}")
    if configuration.most_tokens < 1:
        raise ValueError(f"max_length is {configuration.max_length}, which leaves no room for a new token")


_Check = Callable[[str, Any], Any]


def _refusal(name: str, value: Any, allowed: str) -> ValueError:
    shown = repr(value)
    return ValueError(f"{name} is {shown if len(shown) <= 80 else shown[:77] + '...'}, not {allowed}")


def _one_of(*allowed: Union[str, int]) -> _Check:
    def check(name: str, value: Any) -> Any:
        if type(value) is not type(allowed[0]) or value not in allowed:
            raise _refusal(name, value, " or ".join(map(str, allowed)))
        return value

    return check


def _whole(low: int) -> _Check:
    def check(name: str, value: Any) -> int:
        if type(value) is not int or value < low:
            raise _refusal(name, value, f"a whole number of at least {low}")
        return value

    return check


def _of(kind: type, allowed: str) -> _Check:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise _refusal(name, value, allowed)
        return value

    return check


def _defaults(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refusal(name, value, "an object")
    try:
        return checked(value)
    except InvalidRequest as refusal:
        raise ValueError(f"{name}.{refusal.message}") from None


def _optional(check: _Check) -> _Check:
    return lambda name, value: None if value is None else check(name, value)


def _list_of(check: _Check) -> _Check:
    def check_all(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _refusal(name, value, "a list")
        return tuple(check(name, each) for each in value)

    return check_all


def _languages(name: str, value: Any) -> Languages:
    fields = ("ids", "source_index", "target")
    if not isinstance(value, dict) or set(value) != set(fields):
        raise _refusal(name, value, f"an object of {', '.join(fields)}")
    ids = _of(dict, "an object")(f"{name}.ids", value["ids"])
    return Languages(
        ids={code: _ID(f"{name}.ids.{code}", token_id) for code, token_id in ids.items()},
        source_index=_optional(_one_of(0, -1))(f"{name}.source_index", value["source_index"]),
        target=_one_of(*TARGETS)(f"{name}.target", value["target"]),
    )


_ID = _whole(0)

_CHECKS: dict[str, _Check] = {
    "task": _one_of(*TASKS),
    "kind": _one_of(DECODER, ENCODER_DECODER),
    "max_length": _whole(1),
    "max_source": _optional(_whole(1)),
    "default_max_length": _optional(_whole(2)),
    "defaults": _defaults,
    "eos_token_ids": _list_of(_ID),
    "pad_token_id": _ID,
    "bos_token_id": _optional(_ID),
    "decoder_start_token_ids": _list_of(_ID),
    "forced_bos_token_id": _optional(_ID),
    "forced_eos_token_id": _optional(_ID),
    "suppress_tokens": _list_of(_ID),
    "begin_suppress_tokens": _list_of(_ID),
    "bad_words_ids": _list_of(_list_of(_ID)),
    "bad_words_at_start": _of(bool, "true or false"),
    "renormalize_logits": _of(bool, "true or false"),
    "prefix": _of(str, "a text"),
    "languages": _optional(_languages),
    "clean_up_tokenization_spaces": _of(bool, "true or false"),
    "special_token_ids": _list_of(_ID),
}
assert set(_CHECKS) == {field.name for field in fields(Configuration)}
