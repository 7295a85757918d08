"""Invalid settings and requests are refused with the field and its allowed values."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from hfx.python_backends.engine.generation_settings import DECODING
from hfx.python_backends.engine.request import Request, Settings, check
from hfx.python_backends.engine.spec import EngineSpec, read_spec
from hfx.python_backends.errors import InvalidRequest
from tests.rigs.engine import engine_toys as toys

BAD: tuple[tuple[str, Any, str], ...] = (
    *((setting.name, "of another type", setting.allowed) for setting in DECODING),
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", True, "whole number"),
    ("min_tokens", -1, "at least 0"),
    ("num_beams", 65, "from 1 to 64"),
    ("num_return_sequences", 0, "from 1 to 64"),
    ("do_sample", 1, "true or false"),
    ("temperature", 0, "do_sample"),
    ("temperature", math.nan, "0.001 to 100"),
    ("top_k", -1, "at least 0"),
    ("top_p", 1.01, "0 to 1"),
    ("min_p", 2, "0 to 1"),
    ("repetition_penalty", 0.0, "0.01 to 100"),
    ("frequency_penalty", 2.01, "-2 to 2"),
    ("presence_penalty", -3, "-2 to 2"),
    ("logit_bias", {"5": 101}, "-100 to 100"),
    ("no_repeat_ngram_size", -1, "at least 0"),
    ("length_penalty", 11, "-10 to 10"),
    ("early_stopping", "always", "'never'"),
    ("seed", 2**64, "18446744073709551615"),
    ("eos_ids", 2, "token ids"),
    ("eos_ids", (2, -1), "token ids"),
    ("decoder_prompt", (None,), "token ids"),
    ("forced_bos_id", -1, "at least 0"),
    ("forced_eos_id", 1.0, "whole number"),
    ("suppress_ids", ((1,),), "token ids"),
    ("begin_suppress_ids", None, "token ids"),
    ("bad_words_ids", (1, 2), "lists of token ids"),
    ("bad_words_ids", ((),), "none of them empty"),
    ("bad_words_at_start", 1, "true or false"),
    ("renormalize_logits", 1, "true or false"),
    ("stop_sequences", "stop", "lists of token ids"),
    ("stop_sequences", (("a",),), "token ids"),
    ("log_probs", 3, "true or false"),
    ("new_matcher", "[a-z]+", "what makes a Matcher"),
    ("top_log_probs", 21, "a whole number from 0 to 20"),
    ("prompt_log_probs", 21, "a whole number from 0 to 20"),
)

CONTRADICTIONS: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "max_tokens, which is 4"),
    ({"num_beams": 2, "do_sample": True}, "do_sample", "num_beams"),
    ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences", "num_beams, which is 2"),
    ({"num_return_sequences": 2}, "num_return_sequences", "do_sample"),
    ({"top_log_probs": 2}, "top_log_probs", "0 with beams"),
    ({"top_log_probs": 2, "log_probs": True, "num_beams": 2}, "top_log_probs", "0 with beams"),
    ({"forced_bos_id": 3, "suppress_ids": (3,)}, "forced_bos_id", "suppress_ids"),
    ({"forced_eos_id": 3, "suppress_ids": (3,)}, "forced_eos_id", "suppress_ids"),
)


@pytest.mark.parametrize(("field", "value", "allowed"), BAD)
def test_a_value_out_of_range_is_refused_with_field_and_range(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Settings(**{field: value})
    assert caught.value.field == field
    assert field in str(caught.value) and allowed in str(caught.value)


@pytest.mark.parametrize(("values", "field", "allowed"), CONTRADICTIONS)
def test_a_contradiction_is_refused(values: dict[str, Any], field: str, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Settings(**values)
    assert caught.value.field == field and allowed in caught.value.allowed


def test_every_field_has_a_bad_value_in_the_table() -> None:
    assert {field for field, _, _ in BAD} == {field.name for field in fields(Settings)}


def test_a_long_bad_value_is_shortened() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Settings(eos_ids="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_lists_and_whole_numbers_of_json_are_taken() -> None:
    settings = Settings(eos_ids=[2], bad_words_ids=[[1, 2], [3]], temperature=2, top_p=1)  # type: ignore[arg-type]
    assert settings == Settings(eos_ids=(2,), bad_words_ids=((1, 2), (3,)), temperature=2.0)
    assert hash(settings) == hash(Settings(eos_ids=(2,), bad_words_ids=((1, 2), (3,)), temperature=2.0))
    assert Request(np.array([1, 2]), settings).prompt == (1, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", [(), (1, -2), (1.5,), "text", None])
def test_a_bad_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        Request(prompt, Settings())


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, EngineSpec]:
    """The specifications of a toy with an encoder, and of a toy without."""
    write = {True: toys.write_encoder_decoder, False: toys.write_decoder}
    return {kind: read_spec(write[kind](tmp_path_factory.mktemp("toy"))) for kind in write}


@pytest.mark.parametrize(
    ("prompt", "values", "field"),
    [
        ((1, 10), {}, "prompt"),
        ((1,), {"eos_ids": (10,)}, "eos_ids"),
        ((1,), {"suppress_ids": (3, 11)}, "suppress_ids"),
        ((1,), {"begin_suppress_ids": (11,)}, "begin_suppress_ids"),
        ((1,), {"bad_words_ids": ((1,), (2, 10))}, "bad_words_ids"),
        ((1,), {"stop_sequences": ((10,),)}, "stop_sequences"),
        ((1,), {"forced_bos_id": 10}, "forced_bos_id"),
        ((1,), {"forced_eos_id": 10}, "forced_eos_id"),
        ((1,), {"decoder_prompt": (10,)}, "decoder_prompt"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(
    specs: dict[bool, EngineSpec], prompt: tuple[int, ...], values: dict[str, Any], field: str
) -> None:
    asked, spec = Request(prompt, Settings(max_tokens=5, **values)), specs["decoder_prompt" in values]
    check(asked, replace(spec, vocab_size=12), 8)
    with pytest.raises(InvalidRequest, match="ids from 0 to 9") as caught:
        check(asked, replace(spec, vocab_size=10), 8)
    assert caught.value.field == field


def test_a_decoder_prompt_is_for_encoder_decoders_alone(specs: dict[bool, EngineSpec]) -> None:
    for has_encoder, start in ((True, ()), (False, (1,))):
        with pytest.raises(InvalidRequest, match="decoder_prompt"):
            check(Request((1,), Settings(decoder_prompt=start)), specs[has_encoder], 8)
