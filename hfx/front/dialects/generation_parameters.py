"""The parameters of a generator in Hugging Face's APIs: the arguments of transformers' pipelines, and TGI's parameters.

transformers' `max_length` and `min_length` also count the tokens before the new ones: the start token of an
encoder-decoder, or the prompt. They become numbers of new tokens here, for each prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hfx.client.settings import GenerationSettings
from hfx.front.dialects import pipelines
from hfx.front.fields import Fields, generation_settings
from hfx.front.refusals import invalid
from hfx.front.structured_output import huggingface_structure
from hfx.names import MAX_TOKENS
from hfx.python_backends.engine.generation_settings import MOST_ALTERNATIVES, SAMPLING, SETTINGS, of_scope
from hfx.tasks.transformers_settings import LACKING, OF_MODEL, RESULTS, WITHOUT_EFFECT

# Parameters of generators that hfx does not support, with the values that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **LACKING,
    **RESULTS,
    "watermark": (False,),
    "best_of": (1,),
    "adapter_id": (),
    "truncate": (),
    **pipelines.GENERATING,
}
# Parameters with other names in transformers.
RENAMED = {"src_lang": "source_lang", "tgt_lang": "target_lang", "stop_sequence": "stop_words"}
PREFILL = "decoder_input_details"
PAD = "pad_token_id"  # no answer contains the token, so that it may be any
STATED = {**OF_MODEL, "clean_up_tokenization_spaces": "clean_up_tokenization_spaces"}
LENGTHS = {"max_length": MAX_TOKENS, "min_length": "min_tokens"}
# Parameters that are no settings of hfx's own.
READ = {
    *("generate_parameters", "return_full_text", "grammar", "details", PREFILL, "top_n_tokens", PAD),
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


def read(inputs: pipelines.Inputs) -> Parameters:
    """Return the parameters of a request to a generator. Raises Refusal (400)."""
    parameters = Fields({**inputs.parameters, **inputs.parameters.object("generate_parameters")})
    has_prompt, lengths = parameters.flag("return_full_text"), _lengths(parameters)
    pipelines.check_counts(parameters)
    cut = pipelines.truncates(parameters)
    parameters.pop("truncation", None)
    if cut and parameters.get("long") is None and "long" in inputs.model.metadata.input_types:
        parameters["long"] = "truncate"
    generation = inputs.request.files.generation(inputs.model)
    has_details, alternatives = _details(parameters, generation["defaults"])
    parameters.refuse_unsupported(NEUTRAL)
    _refuse_other_tokens(parameters, generation)
    settings = replace(_settings(parameters, lengths, inputs.request.names), logprobs=alternatives)
    if parameters.flag(PREFILL):
        settings = replace(settings, prompt_logprobs=0)
        inputs.request.names["prompt_logprobs"] = PREFILL
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
        raise invalid(f"{names[own]} and {own} are one setting. Send one of them.", names[own])
    sent = resolve_do_sample({RENAMED.get(name, name): value for name, value in named.items()})
    return generation_settings({**sent, **structure}, names)


async def for_prompt(inputs: pipelines.Inputs, parameters: Parameters, prompt: str) -> GenerationSettings:
    """Return the settings for `prompt`, in which the lengths are numbers of new tokens. Raises Refusal (400)."""
    settings, lengths, files = parameters.settings, parameters.lengths, inputs.request.files
    if not lengths:
        return settings
    generation = files.generation(inputs.model)
    before, longest = len(generation["decoder_start_token_ids"]), generation["max_length"]
    if not before:
        has_special, has_left = settings.add_special_tokens is not False, inputs.request.inference.has_left
        before = await files.prompt_length(inputs.model, prompt, has_special, has_left)
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
        raise invalid(f"{message} {fix or 'Send a shorter text.'}", name)


def _lengths(parameters: Fields) -> dict[str, int]:
    """Return the lengths in `parameters`. As in transformers, numbers of new tokens take precedence over them."""
    sent = [name for name in LENGTHS if parameters.get(name) is not None]
    lengths = {name: parameters.number(name, 0, low=int(name == "max_length")) for name in sent}
    return {
        name: value for name, value in lengths.items() if all(parameters.get(new) is None for new in NEW_TOKENS[name])
    }


def _details(parameters: Fields, defaults: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Return whether answers have details, and the number of alternatives for each token; None: no tokens.

    Beam search has no tokens to return. If beams are only the model's default, the details are without tokens: TGI's
    client always sends `details`.
    """
    has_details = parameters.flag("details")
    count = parameters.number("top_n_tokens", 0, low=0, high=MOST_ALTERNATIVES)
    for name in ("top_n_tokens", PREFILL):
        if parameters.get(name) and not has_details:
            raise invalid(f"{name} go with details. Send details true, or neither.", name)
    own = next((parameters[name] for name in ("num_beams", "beam_width") if parameters.get(name) is not None), None)
    beams = defaults.get("num_beams", 1) if own is None and not parameters.get("do_sample") else own
    if not has_details or not isinstance(beams, int) or beams <= 1:
        return has_details, count if has_details else None
    if own is not None or count:
        name, value = ("top_n_tokens", count) if count else ("details", "true")
        message = f"{name} is {value}, but num_beams is {beams}, and beam search returns no tokens."
        raise invalid(f"{message} Leave {name} out, or send num_beams 1.", name)
    return True, None


def _refuse_other_tokens(parameters: Fields, generation: Mapping[str, Any]) -> None:
    """Raise Refusal (400) for a token that is not the model's own."""
    parameters.number(PAD, 0, low=0)
    own = {name: generation[field] for name, field in STATED.items()}
    sent = {name: value for name, value in parameters.items() if name in own and _listed(value) != _listed(own[name])}
    Fields(sent).refuse_unsupported({name: () if own[name] is None else (own[name],) for name in sent})


def _listed(value: Any) -> list[Any]:
    """Return a token or a list of tokens as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def resolve_do_sample(named: Mapping[str, Any]) -> Mapping[str, Any]:
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
