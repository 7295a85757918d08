"""generation.json: the task of a generation model, its limits, default settings and the tokens with a meaning.

It is read strictly: a field that is missing, unknown or not as it should be is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from ..engine.checks import (
    Check,
    Fields,
    boolean,
    integer,
    mapping,
    one_of,
    optional,
    read_json,
    string,
    token_id,
    token_ids,
    token_sequences,
)
from ..engine.generation_settings import checked
from ..engine.spec import DECODER, ENCODER_DECODER
from ..errors import InvalidRequest

FILE_NAME = "generation.json"
FORMAT = 1

TASKS = ("text-generation", "summarization", "text2text-generation", "translation")
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


def _defaults(name: str, value: Any) -> dict[str, Any]:
    try:
        return checked(mapping(name, value))
    except InvalidRequest as refusal:
        if refusal.field == name:
            raise
        raise InvalidRequest(f"{name}.{refusal.field}", value.get(refusal.field), refusal.allowed) from None


def _languages(name: str, value: Any) -> Languages:
    keys = {"ids", "source_index", "target"}
    if not isinstance(value, dict) or set(value) != keys:
        raise InvalidRequest(name, value, f"an object of {', '.join(sorted(keys))}")
    languages = Fields(value, f"{name}.")
    ids = languages.inside("ids")
    return Languages(
        ids={code: ids.take(code, token_id) for code in ids.values},
        source_index=languages.take("source_index", optional(one_of(0, -1))),
        target=languages.take("target", one_of(*TARGETS)),
    )


@dataclass(frozen=True)
class Configuration:
    """What generation.json says, under the names that it has there, each with its check.

    `max_length` are the positions of the decoder (prompt and output together), `max_source` those of the encoder (None
    without one). `default_max_length` bounds prompt and output together where a request sets no max_tokens (None: the
    default of max_tokens does). `defaults` are settings (generation_settings.py), checked. `prefix` goes before every
    text. `languages` is None where a request can't choose any.
    """

    task: Annotated[str, one_of(*TASKS)]
    kind: Annotated[str, one_of(DECODER, ENCODER_DECODER)]
    max_length: Annotated[int, integer(1)]
    max_source: Annotated[int | None, optional(integer(1))]
    default_max_length: Annotated[int | None, optional(integer(2))]
    defaults: Annotated[Mapping[str, Any], _defaults]
    eos_token_ids: Annotated[Ids, token_ids]
    pad_token_id: Annotated[int, token_id]
    bos_token_id: Annotated[int | None, optional(token_id)]
    decoder_start_token_ids: Annotated[Ids, token_ids]
    forced_bos_token_id: Annotated[int | None, optional(token_id)]
    forced_eos_token_id: Annotated[int | None, optional(token_id)]
    suppress_tokens: Annotated[Ids, token_ids]
    begin_suppress_tokens: Annotated[Ids, token_ids]
    bad_words_ids: Annotated[tuple[Ids, ...], token_sequences]
    bad_words_at_start: Annotated[bool, boolean]
    renormalize_logits: Annotated[bool, boolean]
    prefix: Annotated[str, string]
    languages: Annotated[Languages | None, optional(_languages)]
    clean_up_tokenization_spaces: Annotated[bool, boolean]
    special_token_ids: Annotated[Ids, token_ids]

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
        return read_json(folder / FILE_NAME, FORMAT, cls.of)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Configuration:
        """The configuration of what the file holds. Raises InvalidRequest, naming the field."""
        hints = get_type_hints(cls, include_extras=True)
        checks: dict[str, Check] = {name: hint.__metadata__[0] for name, hint in hints.items()}
        for name in facts.keys() - {"format"} ^ checks.keys():
            allowed = "nothing, as it is no field of this format" if name in facts else "a value, as it is missing"
            raise InvalidRequest(name, facts.get(name), allowed)
        configuration = cls(**{name: check(name, facts[name]) for name, check in checks.items()})
        _refuse_contradictions(configuration)
        return configuration


def _refuse_contradictions(configuration: Configuration) -> None:
    kind = f"where kind is {configuration.kind}"
    if configuration.has_encoder != (configuration.max_source is not None):
        raise InvalidRequest("max_source", configuration.max_source, f"for encoders only, {kind}")
    if configuration.has_encoder != bool(configuration.decoder_start_token_ids):
        ids = configuration.decoder_start_token_ids
        raise InvalidRequest("decoder_start_token_ids", ids, f"for encoder-decoders only, {kind}")
    if configuration.default_max_length is not None and configuration.has_encoder:
        raise InvalidRequest("default_max_length", configuration.default_max_length, f"null {kind}")
    if configuration.languages and not configuration.has_encoder:
        raise InvalidRequest("languages", configuration.languages, f"null {kind}")
    if configuration.most_tokens < 1:
        raise InvalidRequest("max_length", configuration.max_length, "more: it leaves no room for a new token")
