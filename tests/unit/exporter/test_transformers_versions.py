"""Checkpoints written by transformers 4.57.6 and by the installed version answer as in the version that wrote them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer

from hfx.errors import CheckpointUnsupported
from hfx.exporter.config_file import read_config
from hfx.exporter.families import find_family
from hfx.exporter.families.family import Config, resolve_config
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.generation.settings import read_settings
from hfx.exporter.generation.tasks import choose_task
from hfx.exporter.graph.blocks import Rotary
from hfx.exporter.load import load_model
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.source import Checkpoint
from hfx.exporter.tensors import CheckpointTensors
from hfx.exporter.tokenizer import load_tokenizer
from hfx.exporter.transformers_versions import (
    OLD,
    bad_words_at_start,
    cleans_up,
    gives_types,
    refuse_misread,
    tied_and_scaled,
    writer,
)
from hfx.python_backends.engine.jobs import new_searches
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.spaces import clean_up
from tests.attacks.damage import DROPPED, edit_json, edit_tensors
from tests.rigs.checkpoints import tiny_checkpoints, tiny_generators
from tests.rigs.checkpoints.torch_decoding import TorchModel, drive
from tests.rigs.engine import graph_rows
from tests.rigs.machine.tiers import since_transformers
from tests.transformers4.writing import (
    ANSWER,
    CHECKPOINTS,
    PROMPT,
    SOURCE,
    TEXT,
    TOKENIZERS,
    WRITTEN,
    logits,
    random_model,
    tokenized,
)

TOLERANCE = 1e-5  # float32 sums in other orders
CAPACITY = 24
V5 = {"transformers_version": "5.3.0"}


def answers(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WRITTEN / name / "answers.json").read_text())
    return found


def loaded(checkpoint: Checkpoint) -> Any:
    decoder = checkpoint.model_type == "gpt2"
    return load_model(checkpoint, "AutoModelForCausalLM" if decoder else "AutoModelForSeq2SeqLM", headless=False)


def engine_logits(checkpoint: Checkpoint, folder: Path) -> NDArray[Any]:
    """Return the exported graphs' logits of the last token of SOURCE, or of ANSWER after it."""
    write_engine_folder(checkpoint, folder, FORMATS["fp32"], 127)
    if checkpoint.model_type == "gpt2":
        return graph_rows.Rows(folder, 1).prefill([SOURCE])
    return graph_rows.decoded(folder, [SOURCE], [ANSWER])[0]


def check(checkpoint: Checkpoint, expected: Any, folder: Path) -> None:
    wanted = np.asarray(expected)
    np.testing.assert_allclose(logits(loaded(checkpoint)), wanted, atol=TOLERANCE)
    rows = wanted[-1:] if checkpoint.model_type == "gpt2" else wanted
    np.testing.assert_allclose(engine_logits(checkpoint, folder), rows, atol=TOLERANCE)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_of_version_4_answers_as_its_writer_did(name: str, tmp_path: Path) -> None:
    check(tiny_generators.checkpoint(WRITTEN / name), answers(name)["logits"], tmp_path / "engine")


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if not name.endswith("-head")])
def test_a_checkpoint_of_the_installed_version_answers_as_its_writer_does(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    check(tiny_generators.save(tmp_path / name, model), logits(model), tmp_path / "engine")


@pytest.mark.parametrize("name", ["gpt2", "t5", "bart"])
def test_a_head_of_its_own_beside_a_tied_table_is_used_where_version_5_wrote_it(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    check(tiny_generators.save(tmp_path / name, model), logits(model), tmp_path / "engine")


def t5_of_tables(folder: Path, *names: str, own_head: bool = True) -> tuple[Checkpoint, Any]:
    """Return a T5 with tables of these `names` in its file, with a head of its own or a tied one, and its logits."""
    model = random_model("t5")
    if own_head:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    tiny_generators.save(folder, model)
    table, head = model.shared.weight.detach(), model.lm_head.weight.detach()

    def rename(tensors: dict[str, Any]) -> dict[str, Any]:
        del tensors["shared.weight"]
        return tensors | {name: table.clone() for name in names} | {"lm_head.weight": head.clone()}

    edit_tensors(folder, rename)
    return tiny_generators.checkpoint(folder), logits(model)


ENCODERS_TABLE, DECODERS_TABLE = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"


@since_transformers(5, 18)
@pytest.mark.parametrize("name", [ENCODERS_TABLE, DECODERS_TABLE])
def test_a_t5_of_one_table_under_another_name_answers_by_it(name: str, tmp_path: Path) -> None:
    check(*t5_of_tables(tmp_path / "t5", name), tmp_path / "engine")


@pytest.mark.parametrize("name", [ENCODERS_TABLE, DECODERS_TABLE])
def test_a_version_that_takes_a_t5s_head_for_its_embeddings_is_refused(name: str, tmp_path: Path) -> None:
    checkpoint, _ = t5_of_tables(tmp_path, name)
    with pytest.raises(CheckpointUnsupported) as refused:
        refuse_misread(checkpoint, (5, 17))
    assert "it takes lm_head.weight for embeddings" in refused.value.message
    assert refused.value.fix == "pip install 'transformers>=5.18'"
    for reader in ((4, 57), (5, 18)):
        refuse_misread(checkpoint, reader)


@pytest.mark.parametrize(
    ("names", "own_head"), [((ENCODERS_TABLE, DECODERS_TABLE), True), (("shared.weight",), True), ((), False)]
)
def test_a_t5_that_every_version_reads_rightly_is_taken(names: tuple[str, ...], own_head: bool, tmp_path: Path) -> None:
    refuse_misread(t5_of_tables(tmp_path, *names, own_head=own_head)[0], (5, 3))


@pytest.mark.parametrize(("share", "misread"), [(0.25, False), (0.5, True), (1.0, True)])
def test_a_version_that_loses_the_rotated_share_is_refused(share: float, misread: bool, tmp_path: Path) -> None:
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build("neox", rotary_pct=share))
    refused = (
        pytest.raises(CheckpointUnsupported, match=r"partial_rotary_factor.*\n.*>=5.5") if misread else nullcontext()
    )
    with refused:
        refuse_misread(checkpoint, (5, 4))
    refuse_misread(checkpoint, (5, 5))


def test_an_architecture_that_only_a_newer_version_has_is_refused(tmp_path: Path) -> None:
    checkpoint = tiny_generators.save(tmp_path, random_model("gpt2"))
    edit_json(tmp_path / "config.json", model_type="gpt-of-tomorrow")
    with pytest.raises(CheckpointUnsupported, match=r"the architecture.*\n.*--upgrade transformers"):
        load_model(checkpoint, "AutoModelForCausalLM", headless=False)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "t5"}, (True, True)),
        ({"model_type": "t5", "tie_word_embeddings": False}, (False, False)),
        ({"model_type": "mt5"}, (False, False)),
        ({"model_type": "mt5", "tie_word_embeddings": True}, (True, True)),
        ({"model_type": "bart"}, (True, False)),
        ({"model_type": "gpt2", "tie_word_embeddings": False}, (False, False)),
        ({"model_type": "llama"}, (False, False)),
        ({"model_type": "mistral"}, (False, False)),
        ({"model_type": "gpt_neox"}, (False, False)),
        ({"model_type": "opt"}, (True, False)),
        ({"model_type": "smollm3"}, (True, False)),
        (V5 | {"model_type": "gemma3_text"}, (True, False)),
        (V5 | {"model_type": "qwen3"}, (False, False)),
        ({"model_type": "qwen2", "tie_word_embeddings": True}, (True, False)),
        (V5 | {"model_type": "qwen2"}, (False, False)),
        (V5 | {"model_type": "llama", "tie_word_embeddings": True}, (True, False)),
        (V5 | {"model_type": "t5"}, (True, True)),
        (V5 | {"model_type": "t5", "tie_word_embeddings": False}, (True, False)),
        (V5 | {"model_type": "t5", "tie_word_embeddings": True, "scale_decoder_outputs": False}, (True, False)),
        ({"model_type": "mt5", "transformers_version": "5.0.0.dev0", "tie_word_embeddings": False}, (True, False)),
        (V5 | {"model_type": "bart", "tie_word_embeddings": False}, (False, False)),
    ],
)
def test_tied_tables_and_scales_follow_the_version_that_wrote_them(
    config: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    assert tied_and_scaled(config) == expected


@pytest.mark.parametrize("resolved", [True, False], ids=["by version 5", "by version 4"])
def test_rotary_positions_are_read_from_the_fields_of_version_4_too(tmp_path: Path, resolved: bool) -> None:
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build("llama-theta"))
    expected = rotary_of(checkpoint, resolve_config(checkpoint))
    edit_json(tmp_path / "config.json", rope_parameters=DROPPED, rope_theta=300.0, rope_scaling=None)
    config = resolve_config(checkpoint)
    if not resolved:
        values = {name: value for name, value in config.values.items() if name != "rope_parameters"}
        config = replace(config, values={**values, "rope_theta": 300.0, "rope_scaling": None})
    found = rotary_of(checkpoint, config)
    assert expected is not None and found is not None
    assert np.array_equal(found.cos.read(), expected.cos.read())
    if not resolved:
        scaled = replace(config, values=config.values | {"rope_scaling": {"type": "linear", "factor": 2.0}})
        halved = rotary_of(checkpoint, scaled)
        assert halved is not None
        assert np.allclose(halved.cos.read()[::2], expected.cos.read()[: len(halved.cos.read()[::2])], atol=1e-5)


def rotary_of(checkpoint: Checkpoint, config: Config) -> Rotary | None:
    """Return the rotary positions of a checkpoint with this config."""
    return find_family(checkpoint).read(config, CheckpointTensors(checkpoint)).decoder.layers[0].attention.rotary


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("4.57.6", (4, 57)),
        ("5.23.0", (5, 23)),
        ("5.0.0.dev0", (5, 0)),
        ("10.0", (10, 0)),
        (5, (5, 0)),
        ("5.x", (5, 0)),
        *((version, OLD) for version in (None, "", "nonsense", "9" * 5000 + ".0", [5, 23], {})),
    ],
)
def test_the_version_of_the_writer_is_read(version: object, expected: tuple[int, int]) -> None:
    assert writer({"transformers_version": version}) == expected


def test_rules_that_changed_within_version_5_follow_the_minor_version() -> None:
    assert not bad_words_at_start({"transformers_version": "5.17.0"})
    assert bad_words_at_start({"transformers_version": "5.18.0"})
    tokenizer = load_tokenizer(written_by("4.57.6", "gpt2"))
    assert cleans_up(tokenizer, written_by("5.6.2", "gpt2")) and not cleans_up(tokenizer, written_by("5.7.0", "gpt2"))


def written_by(version: str, name: str) -> Checkpoint:
    """Return a recorded checkpoint as if transformers `version` had written it."""
    checkpoint = tiny_generators.checkpoint(WRITTEN / name)
    return replace(checkpoint, config=checkpoint.config | {"transformers_version": version})


def continued(checkpoint: Checkpoint, words: list[list[int]]) -> list[int]:
    """Return six tokens after PROMPT by our greedy search on the logits of the checkpoint's model."""
    found = read_settings(checkpoint, choose_task(checkpoint, "decoder", None), CAPACITY)
    bad = {"bad_words_ids": tuple(map(tuple, words)), "bad_words_at_start": found.bad_words_at_start}
    search = new_searches(Request(tuple(PROMPT), Settings(max_tokens=6, **bad)))[0]
    _, (completion,) = drive(search, TorchModel(loaded(checkpoint), ()), tuple(PROMPT))
    return list(completion.ids)


def test_a_bad_word_of_version_4_never_begins_the_prompt() -> None:
    recorded = answers("gpt2")
    assert continued(written_by("4.57.6", "gpt2"), recorded["bad_words"]) == recorded["continued"]


@since_transformers(5, 18)
def test_a_bad_word_of_version_5_may_begin_the_prompt() -> None:
    checkpoint, words = written_by("5.23.0", "gpt2"), answers("gpt2")["bad_words"]
    ids = torch.tensor([PROMPT])
    expected = loaded(checkpoint).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, pad_token_id=0,
        eos_token_id=None, bad_words_ids=words,
    )[0, len(PROMPT) :].tolist()  # fmt: skip
    assert continued(checkpoint, words) == expected != answers("gpt2")["continued"]


def test_byte_pair_texts_of_version_4_are_cleaned_up_and_those_of_version_5_are_not() -> None:
    old, new, recorded = written_by("4.57.6", "gpt2"), written_by("5.23.0", "gpt2"), answers("gpt2")
    tokenizer = load_tokenizer(old)
    assert cleans_up(tokenizer, old)
    assert clean_up(tokenizer.decode(recorded["ids"], clean_up_tokenization_spaces=False)) == recorded["text"]
    tokenizer = load_tokenizer(new)
    assert tokenizer.clean_up_tokenization_spaces
    assert not cleans_up(tokenizer, new)
    assert tokenizer.decode(recorded["ids"]) == TEXT != recorded["text"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_of_version_4_gives_the_tokens_that_it_gave_there(name: str) -> None:
    assert tokenized(load_tokenizer(tokenizer_checkpoint(WRITTEN / name))) == answers(name)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_of_the_installed_version_gives_the_tokens_that_it_gives_here(name: str, tmp_path: Path) -> None:
    TOKENIZERS[name]().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert", "transformers_version": "5.23.0"}')
    expected = tokenized(AutoTokenizer.from_pretrained(tmp_path))
    assert tokenized(load_tokenizer(tokenizer_checkpoint(tmp_path))) == expected


@pytest.mark.parametrize(
    ("version", "stated", "expected"),
    [
        ("4.57.6", {}, True),
        ("4.57.6", {"model_input_names": ["input_ids", "attention_mask"]}, False),
        ("5.23.0", {"backend": "tokenizers"}, False),
        ("5.23.0", {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, True),
    ],
)
def test_a_generic_tokenizer_gives_the_token_types_that_its_writer_meant(
    version: str, stated: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    tiny_checkpoints.tokenizer().backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "transformers_version": version}))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", **stated}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    checkpoint = tokenizer_checkpoint(tmp_path)
    assert gives_types(load_tokenizer(checkpoint), checkpoint) is expected


def tokenizer_checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(str(folder), folder, None, read_config(folder), ())
