"""generation_config.json as public settings: transformers' meaning of it; hostile values are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, SourceError
from hfx.exporter.generation.fields import IGNORED, KNOWN, UNSERVED_SAMPLING
from hfx.exporter.generation.settings import GenerationSettings, read_settings
from hfx.exporter.generation.tasks import find_generation_task
from hfx.exporter.source import Checkpoint
from hfx.python_backends.generation.configuration import Configuration, resolve_config
from hfx.tasks.transformers_settings import LACKING
from tests.rigs.engine.generation_models import facts

VOCABULARY = 50
SEQ2SEQ = {"decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0}


def settings(
    folder: Path, fields: dict[str, Any] | str | None, task: str = "text2text-generation", **config: Any
) -> GenerationSettings:
    """Return the settings of a checkpoint whose generation_config.json holds `fields` (None: no such file)."""
    if fields is not None:
        text = fields if isinstance(fields, str) else json.dumps(SEQ2SEQ | fields)
        (folder / "generation_config.json").write_text(text)
    checkpoint = Checkpoint("x", folder, None, {"model_type": "bart", "vocab_size": VOCABULARY, **config}, ())
    return read_settings(checkpoint, find_generation_task(task), 64)


def test_fields_of_generation_config_become_public_settings(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        {
            "max_length": 42, "min_length": 11, "length_penalty": 2.0, "early_stopping": True,
            "no_repeat_ngram_size": 3, "repetition_penalty": 1.2, "temperature": 0.7, "top_k": 10, "top_p": 0.9,
            "min_p": 0.1, "stop_strings": ["END"], "forced_bos_token_id": 0, "forced_eos_token_id": 2,
            "suppress_tokens": [5, 6], "begin_suppress_tokens": [7], "bad_words_ids": [[8, 9], [2]],
            "eos_token_id": [2, 3],
        },
    )  # fmt: skip
    assert found.defaults == {
        "max_tokens": 41, "min_tokens": 10, "length_penalty": 2.0, "early_stopping": True,
        "no_repeat_ngram_size": 3, "repetition_penalty": 1.2, "temperature": 0.7, "top_k": 10, "top_p": 0.9,
        "min_p": 0.1, "stop_words": ["END"],
    }  # fmt: skip
    assert (found.eos_token_ids, found.pad_token_id, found.bos_token_id, found.decoder_start_token_ids) == (
        (2, 3),
        1,
        0,
        (2,),
    )
    assert (found.forced_bos_token_id, found.forced_eos_token_id) == (0, 2)
    assert (found.suppress_tokens, found.begin_suppress_tokens) == ((5, 6), (7,))
    assert found.bad_words_ids == ((8, 9),)  # the end alone is no bad word to transformers


def test_written_settings_are_read_back_by_the_server(tmp_path: Path) -> None:
    found = settings(tmp_path, {"top_k": 2, "max_new_tokens": 9, "stop_strings": "END", "forced_eos_token_id": [2]})
    written = facts(max_source=64, max_length=64) | found.as_json()
    configuration = Configuration.of(json.loads(json.dumps(written)))
    chosen = resolve_config({}, configuration)
    assert (chosen.top_k, chosen.max_tokens, chosen.stop_words) == (2, 9, ("END",))
    assert (chosen.decoder_prompt, chosen.forced_eos_id) == ((2,), 2)


def test_old_checkpoints_keep_their_settings_in_config_json(tmp_path: Path) -> None:
    found = settings(tmp_path, None, **SEQ2SEQ, num_beams=4, max_length=22, hidden_size=8, torch_dtype="float32")
    assert found.defaults == {"max_tokens": 21, "num_beams": 4}
    assert found.origins == ("config.json",)


def test_generation_config_json_hides_the_fields_of_config_json(tmp_path: Path) -> None:
    assert settings(tmp_path, {}, num_beams=4).defaults == {"max_tokens": 63}


@pytest.mark.parametrize(
    ("field", "default"),
    [("top_k", 0), ("temperature", 1.0), ("top_p", 1.0), ("do_sample", False), ("early_stopping", False)],
)
def test_null_turns_a_field_off_in_version_4_alone(tmp_path: Path, field: str, default: object) -> None:
    assert settings(tmp_path, {field: None}).defaults[field] == default
    assert field not in settings(tmp_path, {field: None, "transformers_version": "5.23.0"}).defaults


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 63),
        ({"max_length": None}, 63),
        ({"max_length": 20}, 20),  # its default, which it takes for new tokens
        ({"max_length": 20, "transformers_version": "5.23.0"}, 19),
        ({"max_length": 21}, 20),
        ({"max_length": 1000}, 63),
        ({"max_length": 20, "max_new_tokens": 30}, 30),
        ({"max_new_tokens": 1}, 1),
    ],
)
def test_new_tokens_are_what_max_length_leaves(tmp_path: Path, fields: dict[str, Any], tokens: int) -> None:
    assert settings(tmp_path, fields).defaults["max_tokens"] == tokens


@pytest.mark.parametrize(
    ("fields", "tokens", "length"),
    [
        ({}, 63, None),
        ({"max_length": 20}, 20, None),  # its default, which it takes for new tokens
        ({"max_length": 30}, 29, 30),
        ({"max_length": 1000}, 63, 64),
        ({"max_length": 20, "transformers_version": "5.23.0"}, 19, 20),
        ({"max_new_tokens": 30}, 30, None),
        ({"max_new_tokens": 30, "max_length": 40}, 30, None),
    ],
)
def test_a_decoder_s_max_length_counts_the_prompt(
    tmp_path: Path, fields: dict[str, Any], tokens: int, length: int | None
) -> None:
    found = settings(tmp_path, fields, "text-generation")
    assert (found.defaults["max_tokens"], found.default_max_length) == (tokens, length)


@pytest.mark.parametrize("name", sorted(LACKING))
def test_a_field_that_hfx_has_not_may_be_there_if_it_does_nothing(tmp_path: Path, name: str) -> None:
    for value in (None, *LACKING[name]):
        assert settings(tmp_path, {name: value}) == settings(tmp_path, {})


def test_a_pad_token_of_minus_one_is_none(tmp_path: Path) -> None:
    assert settings(tmp_path, {"pad_token_id": -1}).pad_token_id == 2  # the end


@pytest.mark.parametrize(("stated", "meant"), [(True, True), (False, False), (None, False)])
def test_scores_are_renormalized_where_the_checkpoint_says_so(tmp_path: Path, stated: bool | None, meant: bool) -> None:
    """The generation_config.json of opus-mt says so."""
    found = settings(tmp_path, {"renormalize_logits": stated})
    assert (found.renormalize_logits, found.as_json()["renormalize_logits"]) == (meant, meant)


def test_every_field_of_transformers_is_known() -> None:
    from transformers import GenerationConfig

    fields = set(vars(GenerationConfig()))
    assert fields - KNOWN - IGNORED == set()


SEVERAL = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")
UNSUPPORTED = {"num_return_sequences": 3, **dict.fromkeys(LACKING, 2), **{name: [2, 3] for name in SEVERAL}}


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_fields_that_change_answers_are_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointUnsupported, match=rf"{name} in generation_config\.json is "):
        settings(tmp_path, {name: UNSUPPORTED[name], "do_sample": name in UNSERVED_SAMPLING})


UNREAD = {
    "temperature": (0.0, float("nan"), "hot"), "top_k": (-1,), "top_p": (1.1,), "min_p": (-0.1,), "typical_p": (0, 2),
    "epsilon_cutoff": (1.0,), "eta_cutoff": (3e-4,), "top_h": (0.4,),
}  # fmt: skip
UNREAD_VALUES = [(name, value) for name, values in UNREAD.items() for value in values]


@pytest.mark.parametrize(("name", "value"), UNREAD_VALUES, ids=str)
def test_what_is_read_by_sampling_alone_is_left_out_where_nothing_samples(
    tmp_path: Path, name: str, value: object
) -> None:
    """transformers warns of such fields, and takes the likeliest tokens."""
    found = settings(tmp_path, {name: value, "do_sample": False})
    assert found == settings(tmp_path, {"do_sample": False})
    (warning,) = found.warnings
    assert f"{name} in generation_config.json ({value!r})" in warning
    assert found.as_json() == settings(tmp_path, {"do_sample": False}).as_json()
    assert settings(tmp_path, {name: value}) == settings(tmp_path, {})
    with pytest.raises(SourceError, match=rf"{name} in generation_config\.json is "):
        settings(tmp_path, {name: value, "do_sample": True})


def test_stop_strings_of_beams_are_refused(tmp_path: Path) -> None:
    """transformers ends each beam at a stop string, which changes the search."""
    with pytest.raises(CheckpointUnsupported, match="stop_strings"):
        settings(tmp_path, {"stop_strings": ["END"], "num_beams": 2})
    assert settings(tmp_path, {"stop_strings": [], "num_beams": 2}).defaults["num_beams"] == 2


def test_unknown_fields_are_dropped_and_named_in_one_warning(tmp_path: Path) -> None:
    strays: dict[str, Any] = {"a_field_of_tomorrow": 1, "no_repeat_ngram": [3], **{f"stray{i}": None for i in range(9)}}
    params = {"summarization": {"lang": "en"}}
    found = settings(tmp_path, strays | {"num_beams": 2}, "summarization", task_specific_params=params)
    assert found == settings(tmp_path, {"num_beams": 2}, "summarization")
    (warning,) = found.warnings
    assert "a_field_of_tomorrow" in warning and "lang" in warning and "6 more" not in warning and "7 more" in warning


def test_a_checkpoint_without_unknown_fields_gives_no_warning(tmp_path: Path) -> None:
    assert settings(tmp_path, {"transformers_version": "4.30.0", "use_cache": True}).warnings == ()


def test_a_least_length_that_counts_the_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnsupported, match="min_length"):
        settings(tmp_path, {"min_length": 10}, "text-generation")
    assert settings(tmp_path, {"min_new_tokens": 10}, "text-generation").defaults["min_tokens"] == 10


HOSTILE: dict[str, tuple[object, ...]] = {
    # 1: the start of the decoder alone
    "max_length": (0, 1, "20", True, 10**30),
    "max_new_tokens": (0,),
    # 500: above the greatest length
    "min_length": (-1, 500),
    "num_beams": (0, 65, 2.0),
    "do_sample": ("yes", 1),
    "repetition_penalty": (0, [1.0]),
    "no_repeat_ngram_size": (-3,),
    "length_penalty": (float("inf"),),
    "early_stopping": ("maybe", 1.5),
    "eos_token_id": (-1, VOCABULARY, [2, None], [[2]]),
    "pad_token_id": (10**12,),
    "bos_token_id": (True,),
    "decoder_start_token_id": (VOCABULARY,),
    "forced_eos_token_id": ("end",),
    "suppress_tokens": ([0, VOCABULARY], list(range(20_000))),
    "begin_suppress_tokens": ("none",),
    "bad_words_ids": ([5], [[]], [[VOCABULARY]], [[1]] * 20_000),
    "stop_strings": ([""], [1], ["x" * 100_000]),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in HOSTILE.items() for value in values],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_value_is_named_with_its_file(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(CheckpointCorrupt) as caught:
        settings(tmp_path, {name: value})
    assert f"{name} in generation_config.json is " in caught.value.message
    assert len(caught.value.message) < 400
    assert caught.value.fix


def test_contradictory_fields_of_a_checkpoint_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt, match="do_sample"):
        settings(tmp_path, {"do_sample": True, "num_beams": 2})
    with pytest.raises(CheckpointCorrupt, match=r"forced_bos_token_id .* suppress_tokens"):
        settings(tmp_path, {"forced_bos_token_id": 5, "suppress_tokens": [4, 5]})
    with pytest.raises(CheckpointCorrupt, match="min_new_tokens"):
        settings(tmp_path, {"max_new_tokens": 5, "min_new_tokens": 6})


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"a":' * 100_000, "\x00", '{"num_beams": }'])
def test_a_file_that_is_no_object_is_corrupt(tmp_path: Path, text: str) -> None:
    with pytest.raises(CheckpointCorrupt, match=r"generation_config\.json"):
        settings(tmp_path, text)


@pytest.mark.parametrize(
    "params",
    [
        {"summarization": {"num_beams": "four"}},
        {"summarization": {"max_length": -1}},
        {"summarization": {"prefix": 5}},
    ],
    ids=str,
)
def test_a_task_s_own_settings_are_checked_too(tmp_path: Path, params: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match=r"config\.json"):
        settings(tmp_path, {}, "summarization", task_specific_params=params)


@pytest.mark.parametrize("params", [None, [], "x", {"summarization": None}, {"summarization": []}, {"other": {}}])
def test_settings_for_no_task_are_left_alone(tmp_path: Path, params: object) -> None:
    assert settings(tmp_path, {}, "summarization", task_specific_params=params) == settings(tmp_path, {})
