"""Tokenizers that are missing, damaged, foreign or slow, or that do not fit the model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported, SourceError
from hfx.exporter import tokenizer_trial
from hfx.exporter.parity_texts import bundled_texts
from hfx.exporter.slow_tokenizers import read_model
from hfx.exporter.source import open_checkpoint
from hfx.exporter.tokenizer import load_tokenizer
from tests.attacks.damage import edit_json, load, plan, refused
from tests.unit.exporter.test_slow_tokenizers import train

pytestmark = pytest.mark.slow


def read(folder: Path) -> Any:
    return load_tokenizer(open_checkpoint(str(folder)))


def edit_vocabulary(folder: Path, **words: int) -> None:
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] |= words
    file.write_text(json.dumps(content))


def test_a_checkpoint_without_tokenizer_files_is_corrupt(folder: Path) -> None:
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    message = refused(CheckpointCorrupt, folder, lambda: open_checkpoint(str(folder)))
    assert "tokenizer" in message


def test_a_vocabulary_alone_is_a_tokenizer(folder: Path) -> None:
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=words.get)) + "\n")
    (folder / "tokenizer.json").unlink()
    assert read(folder).is_fast


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{}", b"[]", b"null", b"\xff\xff", b"[" * 10_000, b'{"version": "1.0", "model": {"type": "BPE"}}'],
    ids=lambda content: repr(content[:12]),
)
def test_a_tokenizer_that_is_no_tokenizer_is_corrupt(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    refused(CheckpointCorrupt, folder, lambda: read(folder))


def test_added_tokens_that_strip_overlapping_spaces_are_corrupt(folder: Path) -> None:
    """The tokenizers library panics on some rows of them."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    for text, side in ((" ", "lstrip"), ("\t", "rstrip"), ("  ", "rstrip")):
        content["added_tokens"].append({"id": len(words), "content": text, **usual, side: True})
        words[text] = len(words)
    file.write_text(json.dumps(content))
    assert "bad split" in refused(CheckpointCorrupt, folder, lambda: read(folder))


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_truncated_tokenizer_is_corrupt(folder: Path, share: float) -> None:
    content = (folder / "tokenizer.json").read_bytes().rstrip()
    (folder / "tokenizer.json").write_bytes(content[: int(share * len(content))])
    refused(CheckpointCorrupt, folder, lambda: read(folder))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"type": "WordPiece"', '"type": "Wordpiece"'),
        ('"[UNK]": 1', '"[UNK]": -1'),
        ('"[UNK]": 1', '"[UNK]": 4294967296'),
        (
            '"type": "BertPreTokenizer"',
            '"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": true',
        ),
        ('"type": "BertNormalizer"', '"type": "Precompiled", "precompiled_charsmap": "AAAA"'),
    ],
    ids=["model", "negative id", "id beyond 32 bits", "pattern", "panic"],
)
def test_a_tokenizer_that_can_not_tokenize_is_corrupt(folder: Path, old: str, new: str) -> None:
    content = (folder / "tokenizer.json").read_text()
    assert old in content
    (folder / "tokenizer.json").write_text(content.replace(old, new))
    refused(CheckpointCorrupt, folder, lambda: read(folder))


@pytest.mark.parametrize(("word", "token"), [("further", 21), ("film", 5000), ("film", 21)])
def test_a_token_without_an_embedding_is_corrupt(folder: Path, word: str, token: int) -> None:
    edit_vocabulary(folder, **{word: token})
    message = refused(CheckpointCorrupt, folder, lambda: read(folder))
    assert str(token) in message
    assert "21" in message


@pytest.mark.parametrize(
    "fields",
    [
        {"tokenizer_class": 5},
        {"added_tokens_decoder": {"x": {}}},
        {"pad_token": 5},
        {"model_max_length": "x"},
    ],
    ids=str,
)
def test_a_tokenizer_config_of_wrong_kinds_is_corrupt(folder: Path, fields: dict[str, Any]) -> None:
    edit_json(folder / "tokenizer_config.json", **fields)
    refused(CheckpointCorrupt, folder, lambda: read(folder))


@pytest.mark.parametrize("key", ["tokenizer_file", "vocab_file"])
def test_a_tokenizer_config_that_leads_outside_is_unsafe(folder: Path, pristine: Path, key: str) -> None:
    edit_json(folder / "tokenizer_config.json", **{key: str(pristine / "tokenizer.json")})
    refused(CheckpointUnsafe, folder / "tokenizer_config.json", lambda: read(folder))


def test_a_tokenizer_with_code_of_its_own_is_unsafe(folder: Path, tmp_path: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    edit_json(
        folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    )
    refused(CheckpointUnsafe, folder / "tokenizer_config.json", lambda: read(folder))
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_in_python_only_is_unsupported(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("a 1\nb 1\n")
    (folder / "bpe.codes").write_text("a b 1\n")
    edit_json(folder / "tokenizer_config.json", tokenizer_class="PhobertTokenizer", added_tokens_decoder={})
    message = refused(CheckpointUnsupported, folder, lambda: read(folder))
    assert "PhobertTokenizer" in message


def test_a_tokenizer_that_takes_special_tokens_apart_is_unsupported(folder: Path) -> None:
    """tokenizer.json has no field for this option."""
    edit_json(folder / "tokenizer_config.json", split_special_tokens=True)
    assert "split_special_tokens" in refused(CheckpointUnsupported, folder, lambda: read(folder))


def test_a_tokenizer_config_that_is_damaged_or_of_few_tokens_is_refused_by_the_plan(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", model_max_length=3)
    refused(CheckpointUnsupported, "3 tokens", lambda: plan(folder))
    (folder / "tokenizer_config.json").write_text("{")
    refused(CheckpointCorrupt, folder / "tokenizer_config.json", lambda: plan(folder))


def test_a_tokenizer_without_padding_loads(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", pad_token=None)
    load(folder)


def replacing(content: str, times: int) -> dict[str, Any]:
    """Return a normalizer that replaces every character by `content`, `times` times."""
    step = {"type": "Replace", "pattern": {"Regex": "[\\s\\S]"}, "content": content}
    return {"normalizer": {"type": "Sequence", "normalizers": [step] * times}}


BACKTRACKING = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("parts", "kind", "said"),
    [
        ({"pre_tokenizer": BACKTRACKING}, CheckpointCorrupt, "retry-limit"),
        (replacing("x" * 1000, 4), CheckpointUnsafe, "GB for short texts"),
        (replacing("xy", 19), CheckpointUnsafe, " s or "),
    ],
    ids=["backtracks", "grows", "takes long"],
)
def test_a_pattern_or_normalizer_without_bounds_is_refused(
    folder: Path, parts: dict[str, Any], kind: type[SourceError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "s or" in said:
        monkeypatch.setattr(tokenizer_trial, "WALL_SECONDS", 2)
    edit_json(folder / "tokenizer.json", **parts)
    assert said in refused(kind, folder, lambda: read(folder))


def crashing_model(file: Path) -> None:
    """Write a SentencePiece model whose character table makes the library read out of bounds: signal 11 in 0.2.1."""
    train(file, bundled_texts()[:100])
    model = read_model(file)
    draw = random.Random(1)
    table = bytes(draw.randrange(256) for _ in range(1024))
    model.normalizer_spec.precompiled_charsmap = len(table).to_bytes(4, "little") + table + b"abc\0"
    file.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("alone", [True, False])
def test_a_sentencepiece_model_that_crashes_its_library_is_refused(folder: Path, alone: bool) -> None:
    """It is refused also beside a tokenizer.json, as some of transformers' tokenizers read both."""
    crashing_model(folder / "spiece.model")
    if alone:
        (folder / "tokenizer.json").unlink()
        edit_json(folder / "tokenizer_config.json", tokenizer_class="T5Tokenizer")
    assert "crashes" in refused(CheckpointUnsafe, folder, lambda: read(folder))


def test_a_file_that_is_no_model_beside_a_tokenizer_is_not_read(folder: Path) -> None:
    (folder / "spiece.model").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert read(folder).is_fast
