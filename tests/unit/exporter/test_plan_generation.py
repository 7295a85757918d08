"""The plan of a generator's export is decided, or refused, before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, UsageError
from hfx.exporter.families import FAMILIES
from hfx.exporter.generation.plan import DEFAULT_SLOTS, GeneratorPlan
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import Checkpoint
from hfx.names import Task

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 100,
    "n_positions": 1024,
    "n_embd": 32,
    "n_head": 2,
    "n_layer": 2,
    "eos_token_id": 99,
}
BART = {
    "model_type": "bart",
    "architectures": ["BartForConditionalGeneration"],
    "vocab_size": 100,
    "max_position_embeddings": 1024,
    "d_model": 32,
    "decoder_start_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 100,
    "d_model": 32,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
MBART = {"model_type": "mbart", "architectures": ["MBartForConditionalGeneration"]}
M2M100 = BART | {"model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"]}
SUMMARIES = {"num_beams": 4, "no_repeat_ngram_size": 3, "min_length": 56, "max_length": 142}


def plan(folder: Path, config: dict[str, Any], options: ExportOptions | None = None, **more: Any) -> GeneratorPlan:
    made = make_plan(Checkpoint("org/Writer", folder, None, config | more, ()), options or ExportOptions())
    assert isinstance(made, GeneratorPlan)
    return made


@pytest.mark.parametrize(
    ("config", "more", "task"),
    [
        (GPT2, {}, Task.TEXT_GENERATION),
        (BART, {}, Task.TEXT2TEXT_GENERATION),
        (T5, {}, Task.TEXT2TEXT_GENERATION),
        (BART, SUMMARIES, Task.SUMMARIZATION),
        (BART, {"task_specific_params": {"summarization": {"num_beams": 4}}}, Task.SUMMARIZATION),
        (T5, {"task_specific_params": {"summarization": {}, "translation_en_to_de": {}}}, Task.TEXT2TEXT_GENERATION),
        (BART, {"model_type": "pegasus", "architectures": ["PegasusForConditionalGeneration"]}, Task.SUMMARIZATION),
        (BART, {"model_type": "marian", "architectures": ["MarianMTModel"]}, Task.TRANSLATION),
        (BART, MBART, Task.TRANSLATION),
        (M2M100, {}, Task.TRANSLATION),
        (M2M100, SUMMARIES, Task.TRANSLATION),
        (BART | MBART, SUMMARIES, Task.SUMMARIZATION),
    ],
)
def test_the_checkpoint_tells_the_task(
    tmp_path: Path, config: dict[str, Any], more: dict[str, Any], task: Task
) -> None:
    assert plan(tmp_path, config, **more).kind.task is task


def test_an_mbart_with_another_tokenizer_has_no_languages(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert plan(tmp_path, BART, **MBART).kind.task is Task.TEXT2TEXT_GENERATION
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MBart50TokenizerFast"}')
    assert plan(tmp_path, BART, **MBART).kind.task is Task.TRANSLATION


def test_settings_of_a_summarizer_in_its_own_file_tell_the_task(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(SUMMARIES | {"decoder_start_token_id": 2}))
    assert plan(tmp_path, BART).kind.task is Task.SUMMARIZATION


def test_a_given_task_wins_and_brings_its_settings(tmp_path: Path) -> None:
    params = {"summarization": {"prefix": "summarize: ", "num_beams": 4, "max_length": 200, "min_length": 30}}
    tasks = params | {"translation_en_to_de": {"prefix": "translate English to German: "}}
    made = plan(tmp_path, T5, ExportOptions(task="summarization"), task_specific_params=tasks)
    assert made.settings.prefix == "summarize: "
    assert made.settings.defaults == {"max_tokens": 199, "min_tokens": 29, "num_beams": 4}
    assert plan(tmp_path, T5, task_specific_params=tasks).settings.prefix == ""


def test_a_decoder_does_not_sample_because_its_config_names_a_task(tmp_path: Path) -> None:
    params = {"text-generation": {"do_sample": True, "max_length": 50}}
    assert plan(tmp_path, GPT2, task_specific_params=params).settings.defaults == {"max_tokens": 256}


@pytest.mark.parametrize(
    ("config", "task"),
    [(GPT2, "summarization"), (GPT2, "text2text-generation"), (BART, "text-generation"), (T5, "text-generation")],
)
def test_a_task_of_another_kind_is_refused(tmp_path: Path, config: dict[str, Any], task: str) -> None:
    with pytest.raises(UsageError, match=task) as caught:
        plan(tmp_path, config, ExportOptions(task=task))
    assert "Choose" in caught.value.fix


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]},
        {"model_type": "glm", "architectures": ["GlmForSequenceClassification"]},
        {"model_type": "nllb-moe", "architectures": ["NllbMoeForConditionalGeneration"]},
        {"model_type": "xlm", "architectures": ["XLMWithLMHeadModel"]},
        {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]},
        {"model_type": "bert", "architectures": ["BertLMHeadModel"]},
        BART | {"architectures": ["BartForCausalLM"], "is_encoder_decoder": False},
        GPT2 | {"architectures": ["GPT2DoubleHeadsModel"]},
    ],
    ids=lambda config: config["architectures"][0],
)
def test_an_architecture_of_no_generator_family_is_unsupported(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointUnsupported, match=f"{config['architectures'][0]}|{config['model_type']}") as caught:
        plan(tmp_path, config)
    assert caught.value.fix


def test_an_unknown_architecture_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnsupported, match="umt5") as caught:
        plan(tmp_path, {"model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"]})
    known = [name for family in FAMILIES for name in family.model_types]
    assert len(known) > 15
    assert ", ".join(sorted(known)) in caught.value.fix


def test_an_encoder_s_head_generates_nothing(tmp_path: Path) -> None:
    config = BART | {"architectures": ["BartForSequenceClassification"]}
    with pytest.raises(CheckpointUnsupported, match="generates no text"):
        plan(tmp_path, config, ExportOptions(task="summarization"))


def test_a_generator_has_int4_on_the_cpu(tmp_path: Path) -> None:
    assert plan(tmp_path, GPT2, ExportOptions(precision="int4")).built == {"cpu": "int4", "gpu": "fp16"}


def test_a_generator_is_fp16_on_gpus(tmp_path: Path) -> None:
    assert plan(tmp_path, GPT2, ExportOptions(precision="fp32")).built == {"cpu": "fp32", "gpu": "fp16"}


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "int4", "device": "gpu"},
        {"precision": "fp32", "device": "gpu"},
        {"precision": "fp16", "cpu_runtime": "native"},
        {"precision": "fp32", "cpu_runtime": "native"},
        {"device": "gpu", "cpu_runtime": "native"},
        {"device": "gpu", "cpu_runtime": "onnxruntime"},
        {"slots": 0},
        {"slots": -1},
        {"slots": 1025},
        {"max_length": 7},
        {"max_length": 1025},
        {"max_batch_size": 64},
        {"max_batch_size": 1},
        {"aggregation": "simple"},
        {"cpu_math": "bf16"},
        {"dimensions": True},
        {"token_vectors": True},
    ],
    ids=str,
)
def test_an_invalid_option_is_refused_with_a_fix(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        plan(tmp_path, GPT2, ExportOptions(**options))
    assert caught.value.fix


def test_slots_must_hold_the_default_number_of_beams(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="4 beams"):
        plan(tmp_path, BART, ExportOptions(slots=3), num_beams=4)
    made = plan(tmp_path, BART, ExportOptions(slots=4), num_beams=4)
    assert (made.slots, made.max_queue) == (4, 64)
    assert plan(tmp_path, BART).slots == DEFAULT_SLOTS


@pytest.mark.parametrize(("beams", "allowed"), [(1, True), (4, True), (6, True), (7, False), (12, False)])
def test_an_encoder_decoder_has_graphs_for_some_beams(tmp_path: Path, beams: int, allowed: bool) -> None:
    if allowed:
        assert plan(tmp_path, BART, num_beams=beams).settings.defaults["num_beams"] == beams
        return
    with pytest.raises(CheckpointUnsupported, match=f"{beams} beams"):
        plan(tmp_path, BART, num_beams=beams)
    assert plan(tmp_path, GPT2, num_beams=beams).settings.defaults["num_beams"] == beams


@pytest.mark.parametrize(
    ("config", "limit", "lengths"),
    [
        (GPT2, None, (1024, None)),
        (GPT2, 256, (1024, None)),  # the tokenizer knows no output
        (BART, None, (1024, 1024)),
        (BART, 512, (1024, 512)),
        (T5, None, (512, 512)),
        (T5, 64, (512, 64)),
    ],
)
def test_positions_and_the_tokenizer_s_limit_are_the_lengths(
    tmp_path: Path, config: dict[str, Any], limit: int | None, lengths: tuple[int, int | None]
) -> None:
    if limit:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
    made = plan(tmp_path, config)
    assert (made.max_length, made.max_source) == lengths


def test_a_shorter_length_is_both_sides(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    made = plan(tmp_path, BART, ExportOptions(max_length=100))
    assert (made.max_length, made.max_source) == (100, 64)
    assert made.settings.defaults["max_tokens"] == 99
    short = plan(tmp_path, BART, ExportOptions(max_length=32), **SUMMARIES)
    assert (short.max_length, short.max_source) == (32, 32)
    assert (short.settings.defaults["max_tokens"], short.settings.defaults["min_tokens"]) == (31, 31)


def test_a_checkpoint_without_a_start_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt, match="decoder_start_token_id"):
        plan(tmp_path, BART, decoder_start_token_id=None, bos_token_id=None)


@pytest.mark.parametrize("architecture", ["T5ForConditionalGeneration", "T5WithLMHeadModel"])
def test_a_t5_reads_what_max_length_says(tmp_path: Path, architecture: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    config = T5 | {"architectures": [architecture], "n_positions": 512}
    without = plan(tmp_path, config)
    assert (without.max_length, without.max_source) == (512, 512)
    assert any("--max-length" in note for note in without.notes)
    made = plan(tmp_path, config, ExportOptions(max_length=3000))
    assert (made.max_length, made.max_source, made.notes) == (3000, 3000, ())
    with pytest.raises(UsageError, match="max-length"):
        plan(tmp_path, config, ExportOptions(max_length=10**6))
    with pytest.raises(UsageError, match="max-length"):
        plan(tmp_path, BART, ExportOptions(max_length=3000))
