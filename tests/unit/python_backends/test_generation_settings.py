"""The settings that follow from fields, defaults and limits, and the fields that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hfx.python_backends.checks import encoder_settings
from hfx.python_backends.engine.generation_settings import SAMPLING, SETTINGS, of_scope
from hfx.python_backends.errors import InvalidRequest
from hfx.python_backends.generation.configuration import GenerationConfig, resolve_config
from tests.rigs.engine.generation_models import configuration

BART_CNN = {
    "max_tokens": 141, "min_tokens": 55, "num_beams": 4, "length_penalty": 2.0, "early_stopping": True,
    "no_repeat_ngram_size": 3,
}  # fmt: skip


def chosen(fields: dict[str, Any], **changed: Any) -> GenerationConfig:
    return resolve_config(fields, configuration(**changed))


def summarizer(fields: dict[str, Any]) -> GenerationConfig:
    return chosen(fields, task="summarization", max_source=1024, max_length=1024, defaults=BART_CNN)


def refusal(fields: dict[str, Any], **changed: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chosen(fields, **changed)
    return caught.value


# Defaults


def test_without_fields_the_model_decodes_as_its_checkpoint_does() -> None:
    settings = summarizer({})
    assert {name: getattr(settings, name) for name in BART_CNN} == BART_CNN
    assert settings.decoder_prompt == (2,)
    assert settings.eos_ids == (2,)


def test_a_default_gives_way_to_what_the_caller_asks_for() -> None:
    assert summarizer({"max_tokens": 20}).min_tokens == 20
    assert summarizer({"num_beams": 1}).length_penalty == 2.0
    assert summarizer({"num_beams": 1, "temperature": 0.7}).do_sample
    sampler = {"defaults": {"do_sample": True, "temperature": 0.6}}
    assert chosen({"do_sample": False}, **sampler).do_sample is False
    assert chosen({"temperature": 0}, **sampler).do_sample is False
    assert chosen({"top_p": 0.9}, defaults={"temperature": 0.6}).temperature == 0.6


def test_the_default_of_max_tokens_is_what_the_model_holds_at_most() -> None:
    assert chosen({}, max_length=20).max_tokens == 19
    assert not chosen({}, max_length=20).asks_for_tokens


def test_long_texts_are_cut_for_an_encoder_and_refused_for_a_decoder_by_default() -> None:
    assert (summarizer({}).long, chosen({}).long) == ("truncate", "error")


# Names and aliases


def test_every_field_can_be_set() -> None:
    values: dict[str, Any] = {
        "max_tokens": 9, "min_tokens": 3, "num_beams": 2, "num_return_sequences": 2, "do_sample": False, "seed": 2**63,
        "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": -2.0, "logit_bias": ("5:1.0",),
        "no_repeat_ngram_size": 2, "length_penalty": 0.5, "early_stopping": "never",
    }  # fmt: skip
    sampling = dict.fromkeys(of_scope(SAMPLING), 0.5) | {"top_k": 5}
    texts = {"stop_words": ["a"], "return_log_probs": False, "long": "chunk", "merge": "recursive", "overlap": 2}
    tokens = {"logprobs": 3, "prompt_logprobs": 2, "prompt_token_ids": [4], "add_special_tokens": False}
    languages = {"source_lang": "fr", "target_lang": "de"}
    forms = {"json_schema": '{"type": "object"}', "regex": "[a-z]+", "choices": ("yes", "no")}
    assert {*values, *sampling, *texts, *tokens, *languages, *forms} == {*SETTINGS}
    beams, sampled = chosen(values), chosen(sampling)
    assert {name: getattr(beams, name) for name in values} == values
    assert {name: getattr(sampled, name) for name in sampling} == sampling
    special = tokens.pop("add_special_tokens")
    choices = chosen(tokens)
    assert (choices.returns_tokens, choices.log_probs, choices.top_log_probs) == (True, True, 3)
    assert (choices.prompt_log_probs, choices.prompt_token_ids) == (2, (4,))
    assert chosen({"add_special_tokens": special}).add_special_tokens is special
    choices = chosen(texts, max_source=32)
    assert (choices.stop_words, choices.long, choices.merge, choices.overlap) == (("a",), "chunk", "recursive", 2)
    assert {name: getattr(chosen({name: value}), name) for name, value in forms.items()} == forms
    translator = {"ids": {"fr": 5, "de": 6}, "source_index": 0, "target": "forced_bos_token_id"}
    choices = chosen(languages, max_source=32, languages=translator)
    assert (choices.source_id, choices.forced_bos_id) == (5, 6)
    choices = chosen(languages, max_source=32, languages=translator | {"target": "decoder_start_token_ids"})
    assert (choices.decoder_prompt, choices.forced_bos_id) == ((6,), None)


def test_fields_may_have_the_names_of_other_servers() -> None:
    choices = chosen({"beam_width": 3, "num_beams": 3, "max_new_tokens": 7, "stop": "one"})
    assert (choices.num_beams, choices.max_tokens, choices.stop_words) == (3, 7, ("one",))


def test_clients_may_send_penalties_that_do_nothing() -> None:
    assert chosen({"frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}}) == chosen({})


def test_biases_are_a_mapping_or_a_list_of_pairs() -> None:
    pairs = ("50256:-100.0", "7:0.5")
    for given in ({"50256": -100, "7": 0.5}, {50256: -100.0, 7: 0.5}, ["50256:-100", "7:5e-1"], pairs):
        assert chosen({"logit_bias": given}).logit_bias == pairs
    assert chosen({"logit_bias": "7:0.5"}).logit_bias == pairs[1:]


def test_sampling_fields_with_neutral_values_are_allowed_with_beams() -> None:
    assert not chosen({"num_beams": 2, "temperature": 1.0, "top_p": 1.0, "top_k": 0}).do_sample
    assert chosen({"temperature": 1.0, "top_p": 1.0}).do_sample


@pytest.mark.parametrize(
    ("name", "near"),
    [("max_new_token", "max_tokens"), ("stops", "stop_words"), ("num_beam", "num_beams"), ("topp", "top_p")],
)
def test_an_unknown_field_is_refused_with_the_nearest_one(name: str, near: str) -> None:
    error = refusal({name: 3})
    assert error.field == name
    assert str(error) == f"There is no field {name}; did you mean {near}?"


def test_long_names_and_values_are_shortened_in_refusals() -> None:
    assert len(str(refusal({"x" * 1_000_000: 3}))) < 1000
    with pytest.raises(ValueError, match="is no parameter") as caught:
        encoder_settings(json.dumps({"x" * 1_000_000: 3}), "text-ranking", ["raw_scores"])
    with pytest.raises(ValueError, match="it must be true or false") as value:
        encoder_settings(json.dumps({"raw_scores": "x" * 1_000_000}), "text-ranking", ["raw_scores"])
    assert len(str(caught.value)) < 1000 > len(str(value.value))


def test_a_field_that_is_none_counts_as_absent() -> None:
    assert not chosen({"max_tokens": None, "temperature": None}).do_sample


# Types and ranges


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0), ("max_tokens", True), ("max_tokens", 4.0), ("max_tokens", "4"), ("max_tokens", 2**31 - 1),
        ("min_tokens", -1), ("num_beams", 0), ("num_beams", 65), ("num_beams", "2"), ("num_return_sequences", 0),
        ("do_sample", 1), ("temperature", -0.1), ("temperature", 1e-9), ("temperature", 100.5), ("temperature", "hot"),
        ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", False), ("top_k", -1),
        ("top_k", 2.5), ("top_p", -0.1), ("top_p", 1.1), ("min_p", -0.5), ("seed", -1), ("seed", 2**64),
        ("repetition_penalty", 0), ("repetition_penalty", 101.0), ("no_repeat_ngram_size", -1),
        ("frequency_penalty", 2.1), ("frequency_penalty", "1"), ("presence_penalty", float("nan")),
        ("logit_bias", 5), ("logit_bias", {"the": 1}), ("logit_bias", {"5": "much"}), ("logit_bias", {"5": 100.5}),
        ("logit_bias", {"5": None}), ("logit_bias", {"5": float("nan")}), ("logit_bias", {"5": True}),
        ("logit_bias", {"-5": 1}), ("logit_bias", {"5": {}}), ("logit_bias", {"5": 1, "05": 2}),
        ("logit_bias", ["5"]), ("logit_bias", ["5:1:2"]), ("logit_bias", [5]), ("logit_bias", ["٥:1"]),
        ("logit_bias", dict.fromkeys(range(1025), 1)), ("logit_bias", {"9" * 100_000: 1}),
        ("length_penalty", 10.5), ("length_penalty", float("inf")), ("early_stopping", "yes"), ("early_stopping", ""),
        ("stop_words", ["fine", ""]), ("stop_words", ["a"] * 65), ("stop_words", ["a" * 513]),
        ("stop_words", [3]), ("return_log_probs", "true"), ("logprobs", 21), ("logprobs", -1), ("logprobs", True),
        ("prompt_logprobs", 21), ("prompt_token_ids", [-1]), ("prompt_token_ids", ["a"]),
        ("prompt_token_ids", [1] * (2**17 + 1)),
        ("long", "cut"), ("long", "TRUNCATE"), ("merge", "sum"),
        ("overlap", True), ("overlap", -1), ("overlap", 17), ("source_lang", ""), ("target_lang", "fr_XX"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_or_out_of_range_is_refused(field: str, value: object) -> None:
    assert refusal({field: value}, max_source=32).field == field


# Contradictions


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"do_sample": False, "top_p": 0.5}, "do_sample"),
        ({"do_sample": True, "temperature": 0}, "temperature"),
        ({"num_beams": 2, "do_sample": True}, "do_sample"),
        ({"num_beams": 2, "temperature": 0.7}, "temperature"),
        ({"beam_width": 3, "num_beams": 2}, "num_beams"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"num_return_sequences": 3, "num_beams": 2}, "num_return_sequences"),
        ({"merge": "concat"}, "merge"),
        ({"overlap": 0, "long": "truncate"}, "overlap"),
        ({"long": "chunk", "num_beams": 2, "num_return_sequences": 2}, "num_return_sequences"),
        ({"long": "chunk", "return_log_probs": True}, "return_log_probs"),
        ({"long": "chunk", "logprobs": 0}, "logprobs"),
        ({"num_beams": 2, "logprobs": 0}, "logprobs"),
    ],
)
def test_contradictory_fields_of_a_request_are_refused(fields: dict[str, Any], field: str) -> None:
    assert refusal(fields, max_source=32).field == field


def test_chunks_are_refused_for_a_decoder() -> None:
    assert refusal({"long": "chunk"}).field == "long"


def test_beams_beside_a_default_of_sampling_are_refused_with_the_fix() -> None:
    error = refusal({"num_beams": 2}, max_source=32, defaults={"do_sample": True})
    assert error.field == "num_beams" and "do_sample must be false" in str(error)


# Sampling


def test_setting_a_sampling_field_enables_sampling() -> None:
    for name in of_scope(SAMPLING):
        assert chosen({name: SETTINGS[name].off}).do_sample
    assert not chosen({"temperature": 0, "top_p": 0.9}).do_sample


def test_only_do_sample_samples_where_beams_are_the_models_default() -> None:
    fields: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "seed": 3}
    assert (summarizer(fields).num_beams, summarizer(fields).do_sample) == (4, False)
    sampled = summarizer({**fields, "do_sample": True})
    assert (sampled.num_beams, sampled.do_sample, sampled.temperature) == (1, True, 0.7)
    assert summarizer({**fields, "num_beams": 1}).do_sample
    with pytest.raises(InvalidRequest, match="temperature"):
        summarizer({"temperature": 0.7, "num_beams": 4})


def test_a_refusal_names_a_field_as_the_caller_does() -> None:
    for name, value in (("stop", ""), ("max_new_tokens", 0), ("beam_width", 65), ("stop_strings", [3])):
        error = refusal({name: value})
        assert error.field == name and str(error).startswith(f"{name} is ")


def test_a_seed_is_drawn_where_none_is_given() -> None:
    seeds = {chosen({"temperature": 1.0}).seed for _ in range(5)}
    assert len(seeds) == 5
    assert chosen({"temperature": 1.0, "seed": 7}).seed == 7
    assert chosen({}).seed == 0
