from __future__ import annotations

import unicodedata

import pytest

from hfx.exporter.parity_texts import bundled_texts, edge_texts
from tests.rigs.checkpoints import tiny_checkpoints


def scripts(text: str) -> set[str]:
    return {unicodedata.name(c, "").split(" ")[0] for c in text if c.isalpha()}


def test_over_220_different_texts_are_from_one_word_to_a_hundred() -> None:
    texts = bundled_texts()
    words = sorted(len(text.split()) for text in texts)
    assert len(set(texts)) == len(texts) >= 220
    assert words[0] == 1
    assert 100 <= words[-1] <= 150
    assert not [text for text in texts if text.startswith("# ")]


def test_the_texts_are_in_many_scripts() -> None:
    found = set[str]().union(*map(scripts, bundled_texts()))
    many = "LATIN CYRILLIC GREEK ARABIC HEBREW DEVANAGARI THAI CJK HIRAGANA HANGUL"
    assert set(many.split()) <= found


@pytest.mark.parametrize("max_length", [8, 64, 512])
def test_every_edge_text_is_utf_8_and_stands_once(max_length: int) -> None:
    texts = edge_texts(max_length)
    assert [text.encode().decode() for text in texts] == texts
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("max_length", [8, 64, 512])
def test_some_edge_texts_fill_the_model_to_the_token(max_length: int) -> None:
    tokenizer = tiny_checkpoints.tokenizer()
    lengths = {len(tokenizer(text, verbose=False).input_ids) for text in edge_texts(max_length)}
    assert {2, 3, max_length - 1, max_length, max_length + 1} <= lengths
