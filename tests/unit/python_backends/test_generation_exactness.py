"""Texts equal transformers' `generate` and `decode`, character by character, for small models of each family.

The random weights are large, so that the texts are difficult: partial characters, special tokens, spaces everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from hfx.exporter.source import open_checkpoint
from hfx.exporter.tokenizer import load_tokenizer
from hfx.python_backends.generation.generator import TextGenerator
from hfx.python_backends.generation.pieces import join_texts
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.checkpoints.generation_tokenizers import LINES, byte_level, unigram
from tests.rigs.checkpoints.generator_checkpoints import save_whole, write_version

pytestmark = pytest.mark.slow

POSITIONS = 128
TOKENS = 24


@dataclass
class Pair:
    """A family's model in torch, and its export."""

    family: str
    model: Any
    tokenizer: Any
    generator: TextGenerator

    def expected(self, text: str, count: int = 1, **settings: Any) -> list[str]:
        asked = json.dumps([self.family, text, count, settings], sort_keys=True)
        if asked not in GENERATED:
            ids = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=POSITIONS)
            with torch.no_grad():
                found = self.model.generate(**ids, max_new_tokens=TOKENS, num_return_sequences=count, **settings)
            if not self.model.config.is_encoder_decoder:
                found = found[:, ids["input_ids"].shape[1] :]
            GENERATED[asked] = found.tolist()
        return [self.tokenizer.decode(row, skip_special_tokens=True) for row in GENERATED[asked]]


# The ids that transformers generated, by family, text and settings.
GENERATED: dict[str, list[list[int]]] = {}


# Family -> the kind of its tokenizer, sizes and token ids, what generation_config.json says.
FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "gpt2": (
        byte_level,
        {"n_positions": POSITIONS, "initializer_range": 0.6, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
        {},
    ),
    "llama": (
        byte_level,
        {"max_position_embeddings": POSITIONS, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
        {},
    ),
    "bart": (
        partial(byte_level, "bart"),
        {"max_position_embeddings": POSITIONS, "init_std": 0.6, "bos_token_id": 0, "forced_eos_token_id": 2},
        {"forced_bos_token_id": 0, "forced_eos_token_id": 2},
    ),
    "t5-gated": (
        unigram,
        {"num_layers": 2, "n_positions": POSITIONS, "initializer_factor": 2.0, "pad_token_id": 0, "eos_token_id": 1},
        {},
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    torch.set_num_threads(1)
    family, folder = request.param, tmp_path_factory.mktemp("model")
    make_tokenizer, config, generation = FAMILIES[family]
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = POSITIONS
    model = tiny_generators.build(family, vocab_size=len(tokenizer), **config)
    model.generation_config.update(**generation)
    save_whole(folder / "checkpoint", model, tokenizer, generation)
    write_version(folder / "checkpoint", folder)
    with TextGenerator.open(folder, slots=16, threads=1) as generator:
        yield Pair(family, model, load_tokenizer(open_checkpoint(str(folder / "checkpoint"))), generator)


TEXTS = (*LINES, "a", "The market in Berlin", "👩‍👩‍👧 日本", " ".join(LINES[:2]))
BEAMS = (
    {"num_beams": 2},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram_size": 3},
    {"num_beams": 3, "length_penalty": -1.0, "early_stopping": "never", "repetition_penalty": 1.3},
)


def test_greedy_texts_are_transformers(pair: Pair) -> None:
    found = pair.generator.generate_many(TEXTS, max_tokens=TOKENS)
    assert [one.text for one in found] == [pair.expected(text)[0] for text in TEXTS]
    assert len({one.text for one in found}) > len(TEXTS) // 2


def test_pieces_are_the_same_texts(pair: Pair) -> None:
    for text in TEXTS:
        pieces = list(pair.generator.stream(text, max_tokens=TOKENS))
        assert "".join(piece.text for piece in pieces) == pair.expected(text)[0]
        assert join_texts(pieces) == (pair.generator.generate(text, max_tokens=TOKENS),)


@pytest.mark.parametrize("settings", BEAMS, ids=lambda settings: str(settings["num_beams"]))
def test_beams_are_transformers(pair: Pair, settings: dict[str, Any]) -> None:
    for text in TEXTS[::2]:
        found = pair.generator.generate_all(text, max_tokens=TOKENS, num_return_sequences=2, **settings)
        assert [one.text for one in found] == pair.expected(text, 2, **settings)


def test_processed_texts_are_transformers(pair: Pair) -> None:
    settings = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    for text in TEXTS:
        found = pair.generator.generate(text, max_tokens=TOKENS, min_tokens=10, **settings)
        assert found.text == pair.expected(text, min_new_tokens=10, **settings)[0]


def test_stop_strings_cut_the_same_text(pair: Pair) -> None:
    for text in TEXTS:
        whole = pair.expected(text)[0]
        stop = whole[len(whole) // 2 :][:3]
        if not stop:
            continue
        found = pair.generator.generate(text, max_tokens=TOKENS, stop_words=[stop])
        assert found.text == whole[: whole.index(stop)]
        assert found.finish_reason == "stop"


def test_spaces_are_cleaned_up_as_transformers_does(pair: Pair) -> None:
    pair.tokenizer.clean_up_tokenization_spaces = True
    configuration = pair.generator.configuration
    cleaning = TextGenerator(
        pair.generator.engine,
        pair.tokenizer.backend_tokenizer,
        type(configuration)(**{**configuration.__dict__, "clean_up_tokenization_spaces": True}),
    )
    try:
        for text in TEXTS:
            assert cleaning.generate(text, max_tokens=TOKENS).text == pair.expected(text)[0]
    finally:
        pair.tokenizer.clean_up_tokenization_spaces = False


@pytest.mark.parametrize("pair", ["bart", "t5-gated"], indirect=True)
def test_texts_that_are_too_long_for_an_encoder_are_cut_as_transformers_does(pair: Pair) -> None:
    text = " ".join(LINES * 5)
    found = pair.generator.generate(text, max_tokens=TOKENS)
    assert found.text == pair.expected(text)[0]
    whole = len(pair.tokenizer(text)["input_ids"])
    assert (found.input_tokens, found.truncated_tokens) == (POSITIONS, whole - POSITIONS)


@pytest.mark.parametrize("pair", ["bart", "t5-gated"], indirect=True)
def test_parts_of_a_document_are_answered_as_transformers_does(pair: Pair) -> None:
    from hfx.python_backends.generation.documents import parts
    from hfx.python_backends.generation.prompts import PromptEncoder

    text = " ".join(LINES * 5)
    measure = PromptEncoder(pair.tokenizer.backend_tokenizer, pair.generator.configuration)
    expected = [pair.expected(part)[0] for part in parts(text, measure, 1)]
    found = pair.generator.generate(text, max_tokens=TOKENS, long="chunk")
    assert found.text == " ".join(filter(None, expected))
    assert found.truncated_tokens == 0
