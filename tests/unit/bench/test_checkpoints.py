"""Checkpoints for speed measurements: published sizes, a text for every id, prose split as by real vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from bench import checkpoints, vocabulary
from hfx.exporter.parity_texts import bundled_texts
from hfx.exporter.source import open_checkpoint
from tests.rigs.machine.tiers import thinned

SIZES = {"bert": 30522, "roberta": 50265, "gpt2": 50257, "t5": 32128}
PROSE = [text for text in bundled_texts() if text.isascii() and len(text.split()) > 12]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of these tests, which learn each vocabulary once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HFX_PERF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(vocabulary, "tokenizer", cache(vocabulary.tokenizer))
        yield


@pytest.mark.parametrize("kind", SIZES)
def test_every_id_has_a_text(kind: str) -> None:
    tokenizer = vocabulary.tokenizer(kind, SIZES[kind], 512)
    assert len(tokenizer) == SIZES[kind]
    blank = {tokenizer.convert_tokens_to_ids("▁")} if kind == "t5" else set()  # at the start of a text only
    assert [i for i in range(SIZES[kind]) if not tokenizer.decode([i]) and i not in blank] == []


@pytest.mark.parametrize("kind", SIZES)
def test_prose_is_cut_into_between_one_and_two_tokens_a_word(kind: str) -> None:
    tokenizer = vocabulary.tokenizer(kind, SIZES[kind], 512)
    words, tokens = sum(len(text.split()) for text in PROSE), sum(len(tokenizer.tokenize(text)) for text in PROSE)
    assert 1 < tokens / words < 2


def test_the_mlserver_prompt_has_as_many_tokens_as_in_gpt2s_vocabulary() -> None:
    tokenizer = vocabulary.tokenizer("gpt2", SIZES["gpt2"], 512)
    assert len(tokenizer("This is a generation for the work")["input_ids"]) == 7


def test_special_tokens_stand_where_published_files_have_them() -> None:
    gpt2, bart = (vocabulary.tokenizer(kind, SIZES[kind], 512) for kind in ("gpt2", "roberta"))
    assert gpt2.eos_token_id == 50256
    assert bart("a", "b")["input_ids"][0] == bart.bos_token_id == 0 and bart.eos_token_id == 2
    t5 = vocabulary.tokenizer("t5", SIZES["t5"], 512)
    assert (t5.pad_token_id, t5.eos_token_id, t5("a")["input_ids"][-1]) == (0, 1, 1)


@pytest.mark.parametrize("name", thinned(shape.name for shape in checkpoints.SHAPES))
def test_a_checkpoint_is_one_that_hfx_opens(name: str) -> None:
    folder = checkpoints.checkpoint(name, tiny=True)
    opened = open_checkpoint(str(folder))
    assert folder.name == name and opened.config["vocab_size"] == checkpoints.BY_NAME[name].config["vocab_size"]
    assert checkpoints.checkpoint(name, tiny=True) == folder
