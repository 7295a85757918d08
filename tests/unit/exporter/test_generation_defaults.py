"""Token ids and defaults of a checkpoint equal those that transformers generates with, wherever they are stored."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, GenerationConfig

from hfx.errors import CheckpointCorrupt
from hfx.exporter.config_file import read_config
from hfx.exporter.generation.fields import CLASS_IDS
from hfx.exporter.generation.settings import GenerationSettings, read_settings
from hfx.exporter.generation.tasks import choose_task
from hfx.exporter.source import Checkpoint
from hfx.python_backends.engine.jobs import new_searches
from hfx.python_backends.engine.request import Request
from hfx.python_backends.errors import DoesNotFit
from hfx.python_backends.generation.configuration import Configuration, resolve_config
from hfx.python_backends.generation.prompts import PromptEncoder
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.checkpoints.generation_tokenizers import LINES, byte_level
from tests.rigs.checkpoints.torch_decoding import TorchModel, drive
from tests.rigs.engine.generation_models import facts

POSITIONS, TOKENS = 40, 12
PROMPT = (5, 9, 17, 4)
# The classes of Marian, GPT-2 and SmolLM3 have ids near the ends of vocabularies of 58101 tokens and so on.
FAMILIES = {
    "gpt2": 50257,
    "gemma": 60,
    "llama": 60,
    "mistral": 60,
    "neox": 60,
    "opt": 60,
    "smollm": 128300,
    "qwen2": 60,
    "qwen3": 60,
    "bart": 60,
    "mbart": 60,
    "m2m": 60,
    "pegasus": 60,
    "marian": 58101,
    "t5": 60,
    "mt5": 60,
}
IDS: dict[str, dict[str, Any]] = {
    "left out": {},
    "stated": {"eos_token_id": 7, "pad_token_id": 3, "decoder_start_token_id": 5, "bos_token_id": 6},
    "several ends": {"eos_token_id": [7, 9], "pad_token_id": 3, "decoder_start_token_id": 5},
    "null": dict.fromkeys(CLASS_IDS),
    "forced": {"decoder_start_token_id": 5, "forced_bos_token_id": 8, "forced_eos_token_id": 9},
}
FILES: dict[str, dict[str, Any] | None] = {
    "absent": None,
    "empty": {},
    "partial": {"num_beams": 2, "decoder_start_token_id": 4},
    "nulls": {"eos_token_id": [3, 2], "pad_token_id": None, "decoder_start_token_id": None, "bos_token_id": 5},
    "no end": {"eos_token_id": None, "pad_token_id": None, "decoder_start_token_id": 2},
    "whole": {"eos_token_id": [2, 7], "pad_token_id": 1, "decoder_start_token_id": 5, "forced_bos_token_id": 8},
}
CASES = [*((ids, "absent") for ids in IDS), *(("stated", file) for file in FILES if file != "absent")]


@cache
def model(family: str) -> Any:
    """Return a model of one layer whose class-default ids are in its vocabulary."""
    sizes = {"vocab_size": FAMILIES[family]}
    if family == "gpt2":
        return tiny_generators.build(family, **sizes, n_embd=8, n_head=1, n_layer=1)
    if family in tiny_generators.DECODERS:
        return tiny_generators.build(family, **sizes)
    sizes |= {"decoder_vocab_size": FAMILIES[family]}
    sizes |= {"d_model": 8, "d_kv": 8, "num_heads": 1, "encoder_attention_heads": 1, "decoder_attention_heads": 1}
    return tiny_generators.build(family, **sizes)


def written(folder: Path, family: str, ids: dict[str, Any], file: dict[str, Any] | None) -> Checkpoint:
    """Write a checkpoint without weights, whose config.json has only the ids of `ids`."""
    config = {k: v for k, v in model(family).config.to_dict().items() if k not in (*CLASS_IDS, "transformers_version")}
    config |= {"architectures": [type(model(family)).__name__], **ids}
    (folder / "config.json").write_text(json.dumps(config))
    if file is not None:
        (folder / "generation_config.json").write_text(json.dumps(file))
    return Checkpoint(str(folder), folder, None, read_config(folder), ())


def resolved(folder: Path) -> Any:
    """Return transformers' generation config: the file's, or without one, the config's fields as its class has them."""
    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)  # version 5 takes the forced ids out of it
    stated = read_config(folder)
    return GenerationConfig(**{name: stated.get(name, getattr(config, name, None)) for name in CLASS_IDS})


def generated(family: str, settings: Any) -> tuple[int, ...]:
    """Return the new tokens that transformers generates."""
    torch_model = model(family)
    torch_model.generation_config = GenerationConfig()
    changed = copy.deepcopy(settings)
    changed.update(max_new_tokens=TOKENS, use_cache=False)
    with torch.inference_mode():
        ids = torch_model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            generation_config=changed,
        )
    return tuple(ids[0, 1 if torch_model.config.is_encoder_decoder else len(PROMPT) :].tolist())


def ours(checkpoint: Checkpoint, family: str, found: GenerationSettings) -> tuple[int, ...]:
    """Return the new tokens of our search with the published settings."""
    encoder = None if family in tiny_generators.DECODERS else POSITIONS
    configuration = Configuration.of(facts(max_length=POSITIONS, max_source=encoder) | found.as_json())
    settings = resolve_config({"max_tokens": TOKENS}, configuration)
    search = new_searches(Request(PROMPT, settings))[0]
    _, completions = drive(search, TorchModel(model(family), settings.decoder_prompt), PROMPT)
    return completions[0].ids


@pytest.mark.parametrize(("ids", "file"), CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_answers_are_those_of_transformers(tmp_path: Path, family: str, ids: str, file: str) -> None:
    checkpoint = written(tmp_path, family, IDS[ids], FILES[file])
    task = choose_task(checkpoint, "decoder" if family in tiny_generators.DECODERS else "encoder-decoder", None)
    try:
        expected = resolved(tmp_path)
        tokens = generated(family, expected)
    except (ValueError, StrictDataclassError):  # no token to start with; Marian's config takes no null for it
        with pytest.raises(CheckpointCorrupt, match="decoder_start_token_id"):
            read_settings(checkpoint, task, POSITIONS)
        return
    found = read_settings(checkpoint, task, POSITIONS)
    ends = expected.eos_token_id
    assert list(found.eos_token_ids) == (ends if isinstance(ends, list) else [ends] if ends is not None else [])
    assert (found.forced_bos_token_id, found.bos_token_id) == (expected.forced_bos_token_id, expected.bos_token_id)
    assert found.forced_eos_token_id == expected.forced_eos_token_id
    if expected.pad_token_id is not None:
        assert found.pad_token_id == expected.pad_token_id
    assert ours(checkpoint, family, found) == tokens


@pytest.mark.parametrize("file", [None, {"bos_token_id": 6}])
def test_the_first_token_is_forced_by_the_field_of_bart_s_old_summarizers(tmp_path: Path, file: Any) -> None:
    checkpoint = written(tmp_path, "bart", {"force_bos_token_to_be_generated": True, "bos_token_id": 6}, file)
    expected = resolved(tmp_path) if file else GenerationConfig.from_model_config(AutoConfig.from_pretrained(tmp_path))
    found = read_settings(checkpoint, choose_task(checkpoint, "encoder-decoder", None), POSITIONS)
    assert found.forced_bos_token_id == expected.forced_bos_token_id == (None if file else 6)


def test_a_class_s_id_beyond_the_vocabulary_is_none(tmp_path: Path) -> None:
    checkpoint = Checkpoint("x", tmp_path, None, {"model_type": "gpt2", "vocab_size": 100}, ())
    found = read_settings(checkpoint, choose_task(checkpoint, "decoder", None), POSITIONS)
    assert (found.eos_token_ids, found.bos_token_id) == ((), None)
    assert ["eos_token_id" in warning for warning in found.warnings] == [True]


def test_max_length_of_a_decoder_counts_its_prompt_as_in_transformers(tmp_path: Path) -> None:
    tokenizer, longest = byte_level(), 24
    asked = tiny_generators.build("gpt2", vocab_size=len(tokenizer))
    asked.generation_config = GenerationConfig(max_length=longest, eos_token_id=0, pad_token_id=0)
    asked.save_pretrained(tmp_path)
    checkpoint = Checkpoint("x", tmp_path, None, read_config(tmp_path), ())
    found = read_settings(checkpoint, choose_task(checkpoint, "decoder", None), tiny_generators.POSITIONS)
    configuration = Configuration.of(facts(max_length=tiny_generators.POSITIONS) | found.as_json())
    encoder = PromptEncoder(tokenizer.backend_tokenizer, configuration)
    for size in (1, 15, 30):
        text = LINES[0][:size]
        ids = tokenizer(text, return_tensors="pt")
        request = encoder.encode(text, resolve_config({}, configuration))
        _, (answer,) = drive(new_searches(request)[0], TorchModel(asked, ()), request.prompt)
        assert [*request.prompt, *answer.ids] == asked.generate(**ids)[0].tolist()
    text = " ".join(LINES)
    with pytest.raises(ValueError, match="max_length"):
        asked.generate(**tokenizer(text, return_tensors="pt"))
    with pytest.raises(DoesNotFit, match="max_tokens"):
        encoder.encode(text, resolve_config({}, configuration))
