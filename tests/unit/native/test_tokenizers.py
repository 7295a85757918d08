"""Compiled tokenizers give the library's ids and words (test_fuzzers.py has damaged files)."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hfx.errors import HfxError
from hfx.exporter.compiled_tokenizer import NotCompiled, compile_tokenizer
from hfx.exporter.compiled_tokenizer.proof import every_character, first_difference, generated
from hfx.native.tokenizers import CompiledTokenizer
from tests import zoo
from tests.rigs.machine.tiers import full

COUNTS = [1_500, full(6_000)]
BLOCKED = ("e\u0310\u0301", "o\u0316\u0310\u0302")  # marks that others keep from their letter, which are seldom drawn
CHECKPOINTS = (  # each with another kind of tokenizer
    "sentiment-distilbert", "entities-bert", "similar-mpnet", "topics-roberta", "stories-gpt2", "sentiment-albert",
    "sentiment-deberta", "sentiment-xlm-roberta", "summaries-t5",
)  # fmt: skip
BERT, ROBERTA, ALBERT = "entities-bert", "topics-roberta", "sentiment-albert"
SENTENCES = [
    "The quick brown fox doesn't jump.",
    "Caf\u00e9 na\u00efve \u4f60\u597d 12,345!",
    "  two  blanks\n\tand more ",
] * 20


def published(checkpoint: str, folder: Path) -> Path:
    """Return the tokenizer.json of a checkpoint, as an export writes it."""
    from transformers import AutoTokenizer

    path = folder / "tokenizer.json"
    AutoTokenizer.from_pretrained(zoo.tokenizer(checkpoint)).backend_tokenizer.save(str(path))
    return path


def opened(path: Path) -> tuple[CompiledTokenizer, Any]:
    """Return the compiled tokenizer of a tokenizer.json, and the library's."""
    compiled = path.with_name("tokenizer.hfx")
    compiled.write_bytes(compile_tokenizer(path))
    library = Tokenizer.from_file(str(path))
    library.no_truncation()
    library.no_padding()
    return CompiledTokenizer(compiled), library


def compare(path: Path, count: int) -> None:
    """Compare the ids of BLOCKED and of `count` texts, and the words of a quarter as many."""
    compiled, library = opened(path)
    assert first_difference(compiled, library, chain(BLOCKED, islice(generated(library), count))) is None
    assert first_difference(compiled, library, islice(generated(library, 1), count // 4), words=True) is None


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_ids_and_words_are_the_librarys(checkpoint: str, count: int, tmp_path: Path) -> None:
    compare(published(checkpoint, tmp_path), count)


@pytest.mark.parametrize("checkpoint", [BERT, ROBERTA, ALBERT])
@pytest.mark.parametrize("step", [37, full(1)])
def test_every_character_has_the_librarys_ids(step: int, checkpoint: str, tmp_path: Path) -> None:
    compiled, library = opened(published(checkpoint, tmp_path))
    texts = islice(every_character(), 0, None, step)  # each character is in four of them
    assert first_difference(compiled, library, texts) is None


def word_piece(**options: Any) -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(**options)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"]))
    return made


def byte_level(normalizer: Any = None, prefix: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return made


def with_added(made: Tokenizer) -> Tokenizer:
    from tokenizers import AddedToken

    made.add_tokens(
        [AddedToken("new word", normalized=True), AddedToken("caf\u00e9", normalized=True, single_word=True)]
    )
    made.add_special_tokens(
        [AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True), AddedToken("<one>", single_word=True)]
    )
    return made


def with_template(made: Tokenizer) -> Tokenizer:
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        "<s> $A </s>",
        "<s> $A </s> </s> $B:1 </s>:1",
        [("<s>", made.token_to_id("<s>")), ("</s>", made.token_to_id("</s>"))],
    )
    return made


MADE = {
    "no accents stripped": lambda: word_piece(lowercase=True, strip_accents=False),
    "accents stripped, case kept": lambda: word_piece(lowercase=False, strip_accents=True),
    "nothing normalized": lambda: word_piece(
        clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False
    ),
    "ModernBERT's": lambda: byte_level(normalizers.NFC()),
    "a blank before each text": lambda: byte_level(prefix=True),
    "GPT-2's, lower case": lambda: byte_level(normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])),
    "added tokens of WordPiece": lambda: with_added(word_piece(lowercase=True)),
    "added tokens of bytes": lambda: with_added(byte_level()),
    "a template": lambda: with_template(byte_level()),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", MADE)
def test_settings_of_tokenizers_are_honoured(name: str, count: int, tmp_path: Path) -> None:
    MADE[name]().save(str(tmp_path / "tokenizer.json"))
    compare(tmp_path / "tokenizer.json", count)


def test_metaspace_first_marks_only_texts_whose_first_character_is_kept(tmp_path: Path) -> None:
    characters = [f"{inside}{character}" for inside in ("", "##") for character in "abcdef ▁"]
    made = Tokenizer(
        models.WordPiece({token: at for at, token in enumerate(["[UNK]", *characters])}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Replace("fe", "e"), normalizers.Replace(Regex("[a-c]{2,}"), ""), normalizers.Strip()]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.save(str(tmp_path / "tokenizer.json"))
    compiled, library = opened(tmp_path / "tokenizer.json")
    for text in ("de", "fed", "ade", "abde", " de", "de ab", "abab", "a", "ab de fe"):
        assert compiled.encode(text) == library.encode(text).ids


def test_special_tokens_of_texts_and_pairs_are_compiled(tmp_path: Path) -> None:
    made = with_template(byte_level())
    made.save(str(tmp_path / "tokenizer.json"))
    compiled, _ = opened(tmp_path / "tokenizer.json")
    begin, end = made.token_to_id("<s>"), made.token_to_id("</s>")
    assert compiled.template(pair=False) == ([begin, end], [0, 0], [1, 0, 1], [0, 0])
    assert compiled.template(pair=True) == ([begin, end, end, end], [0, 0, 0, 1], [1, 2, 1], [0, 1])


@pytest.mark.parametrize(
    "change",
    [
        lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.UnicodeScripts()),
        lambda made: setattr(made, "normalizer", normalizers.Replace("a", "b")) or setattr(made, "model", models.BPE()),
        lambda made: setattr(made, "model", models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")),
        lambda made: setattr(made, "model", models.WordPiece({"[UNK]": 0, "b" * 20_000: 1}, unk_token="[UNK]")),
    ],
    ids=["another pre-tokenizer", "words of no bytes", "another model", "a token that would take minutes"],
)
def test_unsupported_tokenizer_parts_are_not_compiled(change: Any, tmp_path: Path) -> None:
    made = word_piece()
    change(made)
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(NotCompiled):
        compile_tokenizer(tmp_path / "tokenizer.json")


def test_a_huge_text_takes_time_in_proportion(tmp_path: Path) -> None:
    compiled, library = opened(published(ROBERTA, tmp_path))
    for text in ("x" * 1_000_000, "ab " * 200_000, "\u0301" * 300_000):
        assert compiled.encode(text) == library.encode(text, add_special_tokens=False).ids


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((HfxError, OSError, ValueError), match="none"):
        CompiledTokenizer(tmp_path / "none.hfx")
