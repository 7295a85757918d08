"""Read generation.json, and combine the fields of a request with the defaults in it.

The file has the task of a generation model, its limits, its default settings and its special tokens. It is read
strictly: a field that is missing, unknown or wrong is an error that names the field. A field of the request that
contradicts another field, or that the decoding method would not read, is refused. A field of the request takes
precedence over a default of the model.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from ..checks import (
    Fields,
    Ids,
    annotated,
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
from ..engine.generation_settings import (
    BEAMS,
    CHUNKS,
    DECODING,
    SAMPLING,
    SETTINGS,
    STRUCTURE,
    TEXTS,
    Texts,
    checked,
    of_scope,
)
from ..engine.request import Settings
from ..engine.spec import DECODER, ENCODER_DECODER
from ..errors import InvalidRequest, unusable

FILE_NAME = "generation.json"
FORMAT = 1

TASKS = ("text-generation", "summarization", "text2text-generation", "translation")
TARGETS = ("forced_bos_token_id", "decoder_start_token_ids")
SHOWN_LANGUAGES = 10
SAMPLING_FIELDS = of_scope(SAMPLING)
ONE_BEAM = "set num_beams to 1"
# Settings that could leave structured output without an allowed token, or incomplete -> the value that does nothing.
BREAKS_STRUCTURES = {"min_tokens": 0, "no_repeat_ngram_size": 0, "stop_words": ()}


@dataclass(frozen=True)
class Languages:
    """The languages that a model translates between: `ids` has their token ids by code.

    The token of the source language is the first (`source_index` 0) or last (`source_index` -1) of a text's tokens,
    special tokens included; `source_index` is None if a text has no such token. The token of the target language
    replaces the value of the configuration's field that `target` names, one of TARGETS.
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
        field = f"{name}.{refusal.field}"
        message = "" if refusal.allowed else f"{field} can't be a default: {refusal.message}"
        raise InvalidRequest(field, value.get(refusal.field), refusal.allowed, message) from None


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
    """The fields of generation.json, under their names in the file, each with its check.

    `max_length` is the decoder's number of positions (prompt and output together), and `max_source` the encoder's (None
    for a model without an encoder). `default_max_length` limits prompt and output together if a request sets no
    max_tokens; if it is None, the default of max_tokens is the limit. `defaults` are settings (generation_settings.py),
    checked. `prefix` goes before every text. `languages` is None if a request can't choose a language.
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
        """Whether texts go to an encoder; else the model continues them."""
        return self.kind == ENCODER_DECODER

    @property
    def most_tokens(self) -> int:
        """The most new tokens that any request can ask for."""
        return self.max_length - max(len(self.decoder_start_token_ids), 1)

    @classmethod
    def read(cls, folder: Path) -> Configuration:
        """Read the configuration in `folder`. Raises ModelDamaged, naming the file and the field."""
        return read_json(folder / FILE_NAME, FORMAT, cls.of)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Configuration:
        """Return the configuration with the contents of the file. Raises InvalidRequest, naming the field."""
        checks = annotated(cls)
        for name in facts.keys() - {"format"} ^ checks.keys():
            raise InvalidRequest(
                name, None, "", f"{name} is {'no field of this format' if name in facts else 'missing'}"
            )
        configuration = cls(**{name: check(name, facts[name]) for name, check in checks.items()})
        _refuse_contradictions(configuration)
        return configuration


def _refuse_contradictions(configuration: Configuration) -> None:
    kind = f"where kind is {configuration.kind}"
    if configuration.has_encoder != (configuration.max_source is not None):
        raise InvalidRequest(
            "max_source", configuration.max_source, f"a length of models with an encoder, and null of others, {kind}"
        )
    if configuration.has_encoder != bool(configuration.decoder_start_token_ids):
        ids = configuration.decoder_start_token_ids
        raise InvalidRequest(
            "decoder_start_token_ids", ids, f"a list of ids of models with an encoder, and empty of others, {kind}"
        )
    if configuration.default_max_length is not None and configuration.has_encoder:
        raise InvalidRequest("default_max_length", configuration.default_max_length, f"null {kind}")
    if configuration.languages and not configuration.has_encoder:
        raise InvalidRequest("languages", configuration.languages, f"null {kind}")
    if configuration.most_tokens < 1:
        raise InvalidRequest("max_length", configuration.max_length, "more, as it leaves no room for a new token")


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(Texts, Settings):
    """The settings of one request: the engine's settings, and the settings of its text and of its output texts.

    `max_tokens` is at most what the shortest prompt leaves room for. `asks_for_tokens` says whether the caller has set
    `max_tokens`. If so, and the model continues its prompt, a prompt that leaves room for fewer tokens is refused or,
    if `long` is truncate, cut. `source_id` is the token of the text's language, if the request or the model's defaults
    choose one. `deadline` is in seconds of `time.monotonic`.
    """

    asks_for_tokens: bool
    source_id: int | None = None
    deadline: float | None = None

    @property
    def returns_tokens(self) -> bool:
        """Whether pieces include their tokens."""
        return self.logprobs is not None

    @property
    def comes_early(self) -> bool:
        """Whether a text that is only returned whole is read as its tokens come.

        This is so if stop strings may end the text earlier. Texts with tokens are read as they come, too: reading 1,000
        tokens with 20 alternatives each at once would delay the pieces of other requests by 0.1 s.
        """
        has_tokens = self.returns_tokens or self.prompt_logprobs is not None
        return has_tokens or bool(self.stop_words and self.num_beams == 1)


def resolve_config(
    fields: Mapping[str, Any], configuration: Configuration, timeout: float | None = None
) -> GenerationConfig:
    """Combine a request's `fields` with the defaults of a model.

    `timeout` is in seconds from now. Tokens are sampled if `do_sample` says so. If the request does not set it, tokens
    are sampled if the request sets a field of sampling, or if the model samples by default; temperature 0 turns
    sampling off. If beams are the model's default, fields of sampling have no effect without `do_sample`, as in
    transformers: clients of other servers always send a temperature. Without a seed, a random one is used. Raises
    InvalidRequest, naming the field and what is allowed.
    """
    given = checked(fields)
    values = {**configuration.defaults, **given}
    if given.get("do_sample"):
        values["num_beams"] = given.get("num_beams", 1)  # beams that only the model's defaults ask for give way
    values["do_sample"] = _samples(given, values)
    _refuse_beams_with_samples(given, values)
    _refuse_unread(given, values)
    if "logprobs" in values and values.get("num_beams", 1) > 1:
        raise unusable("logprobs", values["logprobs"], f"num_beams is {values['num_beams']}", ONE_BEAM)
    if configuration.has_encoder and "prompt_logprobs" in values:
        raise unusable("prompt_logprobs", values["prompt_logprobs"], "the model's encoder reads the text")
    _make_way_for_structure(given, values)
    _fit_lengths(given, values, configuration)
    _refuse_chunks(given, values, configuration)
    _refuse_beside_ids(given)
    values.setdefault("long", "truncate" if configuration.has_encoder else "error")
    return GenerationConfig(
        **_engine_settings(values, _with_target(values, configuration)),
        source_id=_source_id(given, values, configuration),
        asks_for_tokens="max_tokens" in given,
        deadline=_deadline(timeout),
        **{each.name: values[each.name] for each in TEXTS if each.name in values},
    )


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if type(timeout) not in (int, float) or not 0 <= timeout < math.inf:
        raise InvalidRequest("timeout", timeout, "a number of seconds of at least 0")
    return time.monotonic() + timeout


def _samples(given: Mapping[str, Any], values: dict[str, Any]) -> bool:
    asked = [name for name in SAMPLING_FIELDS if name in given]
    if values.get("num_beams", 1) > 1 and "do_sample" not in given:
        asked = [name for name in asked if "num_beams" in given and given[name] != SETTINGS[name].off]
    if values.get("temperature") == 0:
        del values["temperature"]
        if given.get("do_sample"):
            raise InvalidRequest("temperature", 0, "above 0, or do_sample must be false")
        return False
    if given.get("do_sample") is False and asked:
        raise InvalidRequest("do_sample", False, f"true, or {asked[0]} must be left out")
    return bool(given.get("do_sample", bool(asked) or values.get("do_sample", False)))


def _refuse_beams_with_samples(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    beams = values.get("num_beams", 1)
    if not values["do_sample"] or beams == 1:
        return
    name = next((name for name in ("do_sample", *SAMPLING_FIELDS) if name in given), None)
    if name is None:
        raise InvalidRequest("num_beams", beams, "1, or do_sample must be false, as this model samples by default")
    raise unusable(name, given[name], f"beams are not sampled, and num_beams is {beams}", ONE_BEAM)


def _refuse_unread(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for name in of_scope(BEAMS):
        off = SETTINGS[name].off
        if values.get("num_beams", 1) == 1 and given.get(name, off) != off:
            raise InvalidRequest(name, given[name], f"{off}, or num_beams must be more than 1")


def _make_way_for_structure(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Refuse settings that could break structured output. Defaults of the model that could break it are dropped."""
    structures = [name for name in of_scope(STRUCTURE) if given.get(name)]
    if not structures:
        return
    if len(structures) > 1:
        raise unusable(structures[1], given[structures[1]], f"{structures[0]} sets the structure of the answer, too")
    for name, off in BREAKS_STRUCTURES.items():
        if given.get(name, off) != off:
            raise unusable(name, given[name], f"it could break the structure that {structures[0]} sets")
        values.pop(name, None)


def _fit_lengths(given: Mapping[str, Any], values: dict[str, Any], configuration: Configuration) -> None:
    most = configuration.most_tokens
    if given.get("max_tokens", 1) > most:
        allowed = f"from 1 to {most}, as the model holds {configuration.max_length} tokens in all"
        raise InvalidRequest("max_tokens", given["max_tokens"], allowed)
    values["max_tokens"] = min(values.get("max_tokens", SETTINGS["max_tokens"].default), most)
    if "min_tokens" not in given:
        values["min_tokens"] = min(values.get("min_tokens", 0), values["max_tokens"])


def _refuse_chunks(given: Mapping[str, Any], values: Mapping[str, Any], configuration: Configuration) -> None:
    if values.get("long") != "chunk":
        for name in of_scope(CHUNKS):
            if name in given:
                raise unusable(name, given[name], "long is not chunk")
        return
    if not configuration.has_encoder:
        raise InvalidRequest("long", "chunk", "error or truncate, as the model continues texts and has no encoder")
    if values.get("num_return_sequences", 1) > 1:
        raise InvalidRequest("num_return_sequences", values["num_return_sequences"], "1, or long must not be chunk")
    if values.get("return_log_probs"):
        raise InvalidRequest("return_log_probs", True, "false, or long must not be chunk")
    if "logprobs" in values:
        raise unusable("logprobs", values["logprobs"], "long is chunk")
    for name in of_scope(STRUCTURE):
        if values.get(name):
            raise unusable(name, values[name], "long is chunk")


def _refuse_beside_ids(given: Mapping[str, Any]) -> None:
    for name in ("add_special_tokens", "source_lang", "long"):
        if given.get("prompt_token_ids") and name in given:
            raise unusable(name, given[name], "the prompt is token ids, which stay as they are")


def _language(name: str, values: Mapping[str, Any], languages: Languages | None) -> int | None:
    """Return the token of the language that a field chooses; None if the field is not set."""
    code = values.get(name)
    if code is None:
        return None
    if languages is None or (name == "source_lang" and languages.source_index is None):
        raise unusable(name, code, "this model has no tokens that choose a language")
    if code not in languages.ids:
        near = get_close_matches(code, languages.ids, 3, 0.4)
        shown = [*near, *sorted(languages.ids.keys() - set(near))][:SHOWN_LANGUAGES]
        others = len(languages.ids) - len(shown)
        raise InvalidRequest(
            name, code, f"one of {', '.join(shown)}" + (f" and {others} other languages" if others else "")
        )
    return languages.ids[code]


def _source_id(given: Mapping[str, Any], values: Mapping[str, Any], configuration: Configuration) -> int | None:
    """Return the token of the text's language, which is one of its special tokens; None if it is not set."""
    if values.get("add_special_tokens", True):
        return _language("source_lang", values, configuration.languages)
    if "source_lang" in given:
        raise unusable("source_lang", given["source_lang"], "add_special_tokens is false")
    return None


def _with_target(values: Mapping[str, Any], configuration: Configuration) -> Configuration:
    """Return the configuration for answers in the language that `target_lang` chooses."""
    target = _language("target_lang", values, configuration.languages)
    if target is None or configuration.languages is None:
        return configuration
    if configuration.languages.target == "decoder_start_token_ids":
        return replace(configuration, decoder_start_token_ids=(target,))
    return replace(configuration, forced_bos_token_id=target)


def _engine_settings(values: Mapping[str, Any], configuration: Configuration) -> dict[str, Any]:
    """Return the fields of Settings."""
    chosen = {each.name: values[each.name] for each in DECODING if each.name in values}
    if values["do_sample"]:
        chosen.setdefault("seed", secrets.randbits(64))
    return {
        **chosen,
        "log_probs": values.get("return_log_probs", False) or "logprobs" in values,
        "top_log_probs": values.get("logprobs", 0),
        "prompt_log_probs": values.get("prompt_logprobs"),
        "eos_ids": configuration.eos_token_ids,
        "decoder_prompt": configuration.decoder_start_token_ids,
        "forced_bos_id": configuration.forced_bos_token_id,
        "forced_eos_id": configuration.forced_eos_token_id,
        "suppress_ids": configuration.suppress_tokens,
        "begin_suppress_ids": configuration.begin_suppress_tokens,
        "bad_words_ids": configuration.bad_words_ids,
        "bad_words_at_start": configuration.bad_words_at_start,
        "renormalize_logits": configuration.renormalize_logits,
    }
