"""The parameters of a generator in Hugging Face's APIs: the arguments of transformers' pipelines, and TGI's parameters.

transformers' `max_length` and `min_length` also count the tokens before the new ones: the start token of an
encoder-decoder, or the prompt. They become numbers of new tokens here, for each prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hfx.client.settings import GenerationSettings
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest
from hfx.front.dialects import pipelines
from hfx.front.fields import Fields, flag, generation_settings, json_object, refuse_unsupported, whole_number
from hfx.front.refusals import Refusal
from hfx.front.structured_output import huggingface_structure
from hfx.metadata import INT32_MAX
from hfx.names import MAX_TOKENS, TEXT_INPUT
from hfx.python_backends.engine.generation_settings import MOST_ALTERNATIVES, SAMPLING, SETTINGS, of_scope
from hfx.python_backends.inputs import BYTES_PER_TOKEN, piece
from hfx.tasks.transformers_settings import LACKING, OF_MODEL, RESULTS, WITHOUT_EFFECT

# Parameters of generators that hfx does not support, with the values that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **LACKING,
    **RESULTS,
    "decoder_input_details": (False,),
    "watermark": (False,),
    "best_of": (1,),
    "adapter_id": (),
    "truncate": (),
    **pipelines.GENERATING,
}
# Parameters with other names in transformers.
RENAMED = {"src_lang": "source_lang", "tgt_lang": "target_lang", "stop_sequence": "stop_words"}
PAD = "pad_token_id"  # no answer contains the token, so that it may be any
STATED = {**OF_MODEL, "clean_up_tokenization_spaces": "clean_up_tokenization_spaces"}
LENGTHS = {"max_length": MAX_TOKENS, "min_length": "min_tokens"}
# Parameters that are no settings of hfx's own.
READ = {
    *("generate_parameters", "return_full_text", "grammar", "details", "top_n_tokens", PAD),
    *(*STATED, *LENGTHS, *pipelines.COUNTS, *NEUTRAL, *WITHOUT_EFFECT),
}
NEW_TOKENS = {"max_length": ("max_new_tokens", MAX_TOKENS), "min_length": ("min_new_tokens", "min_tokens")}


@dataclass(frozen=True)
class Parameters:
    """The parameters of a request.

    `lengths` are transformers' lengths that the request has. `has_prompt` is whether an answer begins with its prompt,
    and `has_details` whether it has details.
    """

    settings: GenerationSettings
    lengths: Mapping[str, int]
    has_prompt: bool
    has_details: bool


def read(request: DialectRequest, model: ServedModel, fields: Fields) -> Parameters:
    """Return the parameters in `fields`. Raises Refusal (400)."""
    parameters = {**fields, **json_object(fields.get("generate_parameters") or {}, "generate_parameters")}
    has_prompt, lengths = flag(parameters, "return_full_text"), _lengths(parameters)
    pipelines.check_counts(parameters)
    cut = pipelines.truncates(parameters.pop("truncation", False))
    if cut and parameters.get("long") is None and "long" in model.metadata.input_types:
        parameters["long"] = "truncate"
    generation = request.files.generation(model)
    has_details, alternatives = _details(parameters, generation["defaults"])
    refuse_unsupported(parameters, NEUTRAL)
    _refuse_other_tokens(parameters, generation)
    settings = replace(_settings(parameters, lengths, request.inference.names), logprobs=alternatives)
    if generation["decoder_start_token_ids"] and settings.max_tokens:  # LangChain's 512 is more than many models hold
        most = generation["max_length"] - len(generation["decoder_start_token_ids"])
        settings = replace(settings, max_tokens=min(settings.max_tokens, most))
    return Parameters(settings, lengths, has_prompt, has_details)


def _settings(parameters: Fields, lengths: Mapping[str, int], names: dict[str, str]) -> GenerationSettings:
    """Return hfx's settings in `parameters`, and add the caller's names of fields to `names`. Raises Refusal (400)."""
    structure = huggingface_structure(parameters.get("grammar"))
    named = {name: value for name, value in parameters.items() if name not in READ and value is not None}
    names |= dict.fromkeys(structure, "grammar") | {own: name for name, own in RENAMED.items() if name in named}
    names |= {own: name for name, own in LENGTHS.items() if name in lengths}
    if both := sorted(names.keys() & named.keys()):
        own = both[0]
        raise Refusal(400, f"{names[own]} and {own} are one setting. Send one of them.", param=names[own])
    sent = resolve_do_sample({RENAMED.get(name, name): value for name, value in named.items()})
    return generation_settings({**sent, **structure}, names)


async def for_prompt(
    request: DialectRequest, model: ServedModel, parameters: Parameters, prompt: str
) -> GenerationSettings:
    """Return the settings for `prompt`, in which the lengths are numbers of new tokens. Raises Refusal (400)."""
    settings, lengths = parameters.settings, parameters.lengths
    if not lengths:
        return settings
    generation = request.files.generation(model)
    before = len(generation["decoder_start_token_ids"]) or await _tokens(request, model, settings, prompt)
    longest = generation["max_length"]
    if "max_length" in lengths:
        _check_length("max_length", lengths, before, before + 1, longest)
        settings = replace(settings, max_tokens=lengths["max_length"] - before)
    if "min_length" in lengths:
        most = settings.max_tokens or generation["defaults"].get(MAX_TOKENS, SETTINGS[MAX_TOKENS].default)
        _check_length("min_length", lengths, before, 0, min(most + before, longest))
        settings = replace(settings, min_tokens=max(lengths["min_length"] - before, 0))
    return settings


def _check_length(name: str, lengths: Mapping[str, int], before: int, low: int, high: int) -> None:
    """Raise Refusal (400) unless a length is from `low` to `high`. `before` are the tokens before the new ones."""
    if not low <= lengths[name] <= high:
        message = f"{name} is {lengths[name]}. It counts the tokens before the new ones, too (here {before})."
        fix = f"Send {low} to {high}, or a number of new tokens as {NEW_TOKENS[name][0]}." if low <= high else ""
        raise Refusal(400, f"{message} {fix or 'Send a shorter text.'}", param=name)


async def _tokens(request: DialectRequest, model: ServedModel, settings: GenerationSettings, prompt: str) -> int:
    """Return the number of tokens of a decoder's prompt. What no model could read of it is not counted."""
    limit = request.files.generation(model)["max_length"] * BYTES_PER_TOKEN[-1]
    read, special = piece(TEXT_INPUT, prompt.encode(), limit, "right").text, settings.add_special_tokens is not False
    [count] = await request.files.tokenized(
        model, [read], lambda _, encoding: len(encoding), special, request.inference.has_left
    )
    return max(count, 1)  # transformers continues an empty prompt from its start token


def _lengths(parameters: Fields) -> dict[str, int]:
    """Return the lengths in `parameters`. As in transformers, numbers of new tokens take precedence over them."""
    sent = [name for name in LENGTHS if parameters.get(name) is not None]
    lengths = {name: whole_number(parameters, name, int(name == "max_length"), INT32_MAX, 0) for name in sent}
    return {
        name: value for name, value in lengths.items() if all(parameters.get(new) is None for new in NEW_TOKENS[name])
    }


def _details(parameters: Fields, defaults: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Return whether answers have details, and the number of alternatives for each token; None: no tokens.

    Beam search has no tokens to return. If beams are only the model's default, the details are without tokens: TGI's
    client always sends `details`.
    """
    has_details, count = flag(parameters, "details"), whole_number(parameters, "top_n_tokens", 0, MOST_ALTERNATIVES, 0)
    if count and not has_details:
        raise Refusal(400, "top_n_tokens go with details. Send details true, or neither.", param="top_n_tokens")
    own = next((parameters[name] for name in ("num_beams", "beam_width") if parameters.get(name) is not None), None)
    beams = defaults.get("num_beams", 1) if own is None and not parameters.get("do_sample") else own
    if not has_details or not isinstance(beams, int) or beams <= 1:
        return has_details, count if has_details else None
    if own is not None or count:
        name, value = ("top_n_tokens", count) if count else ("details", "true")
        message = f"{name} is {value}, but num_beams is {beams}, and beam search returns no tokens."
        raise Refusal(400, f"{message} Leave {name} out, or send num_beams 1.", param=name)
    return True, None


def _refuse_other_tokens(parameters: Fields, generation: Mapping[str, Any]) -> None:
    """Raise Refusal (400) for a token that is not the model's own."""
    whole_number(parameters, PAD, 0, INT32_MAX, 0)
    own = {name: generation[field] for name, field in STATED.items()}
    sent = {name: value for name, value in parameters.items() if name in own and _listed(value) != _listed(own[name])}
    refuse_unsupported(sent, {name: () if own[name] is None else (own[name],) for name in sent})


def _listed(value: Any) -> list[Any]:
    """Return a token or a list of tokens as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def resolve_do_sample(named: Fields) -> Fields:
    """If `do_sample` is false, drop it beside sampling settings that are on: these sample in TGI (NextTokenChooser).

    Defaults of transformers are not on, because a caller may send all fields of a GenerationConfig. If no setting is
    on, all of them are dropped.
    """
    if named.get("do_sample") is not False:
        return named
    fields = of_scope(SAMPLING)
    is_on = any(named.get(name) not in (None, SETTINGS[name].off, SETTINGS[name].default) for name in fields)
    dropped = ("do_sample",) if is_on else fields
    return {name: value for name, value in named.items() if name not in dropped}
