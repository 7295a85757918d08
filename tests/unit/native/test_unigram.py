"""Unigram models and character tables: ids equal the library's in cases that whole tokenizers seldom reach."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers

from hfx.exporter.compiled_tokenizer import NotCompiled, compile_tokenizer
from hfx.exporter.compiled_tokenizer.graphemes import charsmap, graphemes
from hfx.native.tokenizers import CompiledTokenizer
from tests.rigs.machine.tiers import full

BYTES = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -1.0) for byte in range(256))]
# Characters of each rule of grapheme clusters, of few bytes where there are such.
MARKS, HANGUL, OTHERS = "\u0301\u0308\u200d\u0903\u094d\U0001d165", "\u1100\u1161\u11a8가각", "\r\n\u00ad❤\u0915"
CLUSTERED = f"ab©®\u0600\U000110bd\U0001f1e6{MARKS}{HANGUL}{OTHERS}"


def both(made: Tokenizer, folder: Path) -> tuple[CompiledTokenizer, Any]:
    """Return `made` compiled, and as the library reads it."""
    made.save(str(folder / "tokenizer.json"))
    (folder / "compiled").write_bytes(compile_tokenizer(folder / "tokenizer.json"))
    return CompiledTokenizer(folder / "compiled"), Tokenizer.from_file(str(folder / "tokenizer.json"))


def differing(made: Tokenizer, folder: Path, texts: list[str]) -> list[str]:
    """Return the texts whose ids differ from the library's."""
    compiled, library = both(made, folder)
    expected = library.encode_batch(texts, add_special_tokens=False)
    pairs = zip(texts, compiled.encode_batch(texts), expected, strict=True)
    return [text for text, found, wanted in pairs if found.tolist() != wanted.ids]


def with_table(table: dict[str, str]) -> Tokenizer:
    """Return a tokenizer whose ids are the bytes of the normalized text."""
    made = Tokenizer(models.Unigram(BYTES, 0, byte_fallback=True))
    made.normalizer = normalizers.Precompiled(charsmap({key.encode(): text for key, text in table.items()}))
    return made


def random_text(rng: random.Random, characters: list[str] | str, longest: int) -> str:
    """Return up to `longest` characters."""
    return "".join(rng.choices(characters, k=rng.randint(1, longest)))


@pytest.mark.parametrize("seed", [0, *map(full, range(1, 4))])
def test_clusters_of_few_bytes_are_looked_up_whole(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    classes = graphemes().copy()
    members = [np.flatnonzero(classes == value) for value in np.unique(classes)]
    usual = [
        chr(code) for group in members for code in rng.choices(group.tolist(), k=20) if not 0xD800 <= code < 0xE000
    ]
    characters = [*usual, *CLUSTERED * 8]
    keys = [random_text(rng, characters, 3) for _ in range(40)]
    table = {key: random_text(rng, "XYé", 3)[1:] for key in keys if "\0" not in key}
    texts = [random_text(rng, [*characters, *keys], 8) for _ in range(20_000)]
    assert not differing(with_table(table), tmp_path, texts)


@pytest.mark.parametrize("around", ["a{}\u0301", "©{}\u200d©\u0301", "\u0915{}\u0915\u0301", "\u0600{}\u1161\u0301"])
def test_characters_begin_the_clusters_of_the_library(around: str, tmp_path: Path) -> None:
    table = dict.fromkeys("a©\u0915\u1161\u11a8", "C") | {"\u0301": "M"}
    parts = (range(0x3400), range(0xA000, 0xD800, 7), range(0xF900, 0x20000, 3), range(0x20000, 0x110000, 1999))
    characters = [chr(code) for part in parts for code in part]
    lines = ["\n".join(map(around.format, characters[at : at + 64])) for at in range(0, len(characters), 64)]
    assert not differing(with_table(table), tmp_path, lines)


@pytest.mark.parametrize("bytes_used", [False, True])
def test_the_best_pieces_are_the_librarys(bytes_used: bool, tmp_path: Path) -> None:
    # Few scores, so that many ways are equal; some above 0, so that unknown characters are better than their piece.
    for seed in range(8):
        rng = random.Random(seed)
        pieces = {random_text(rng, "abc▁é中", 5): rng.choice([-1.0, -2.0, -0.1, -0.3, 0.0, 30.0]) for _ in range(40)}
        known = [("a", -1.0), ("<unk>", 0.0), *pieces.items(), *pieces.items(), ("a", -0.7)]
        made = Tokenizer(models.Unigram([*known, *BYTES[1 : 1 + rng.choice([200, 256])]], 1, byte_fallback=bytes_used))
        texts = [random_text(rng, [*"abc▁é中xy😀", "<unk>"], 12) for _ in range(2000)]
        assert not differing(made, tmp_path, texts), seed


def test_scores_are_those_that_the_library_reads(tmp_path: Path) -> None:
    # Of 200,000 scores, 26,544 are read in tokenizer.json with another last bit than Python's.
    rng = random.Random(0)
    for _ in range(8):
        pieces = [(letter, -20 * rng.random()) for letter in "abcdefgh"]
        pairs = [(one + two, score + other) for one, score in pieces for two, other in pieces]
        made = Tokenizer(models.Unigram([("<unk>", 0.0), *pieces, *pairs], 0, byte_fallback=False))
        assert not differing(made, tmp_path, [random_text(rng, "abcdefgh", 9) for _ in range(1000)])


def test_a_unigram_model_without_an_unknown_token_is_not_compiled(tmp_path: Path) -> None:
    with pytest.raises(NotCompiled):
        both(Tokenizer(models.Unigram([("a", 0.0)], None, byte_fallback=False)), tmp_path)


def test_long_runs_have_the_librarys_ids(tmp_path: Path) -> None:
    made = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("aa", -1.5), ("x" * 300, -1.0)], 0))
    made.normalizer = normalizers.Precompiled(charsmap({b"b": "a"}))
    assert not differing(made, tmp_path, [part * 100_000 for part in ("a", "\u0301", "b\u0301", "z", "x", "ab\u200d")])
