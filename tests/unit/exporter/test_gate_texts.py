"""An export is compared on texts that its tokenizer knows: bundled ones, and others made of its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hfx.cli.export_summary import summary
from hfx.errors import CheckpointUnsupported, SourceError
from hfx.exporter import gate_texts
from hfx.exporter.gate_texts import GateTexts, read_gate_texts, unknown_share
from hfx.exporter.source import open_checkpoint
from hfx.exporter.verify import REFERENCE_FILE, read_recorded
from hfx.names import TEXT_INPUT
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.checkpoints.published import export_checkpoint
from tests.zoo import tokenization

ATOMS = ("C", "N", "O", "c", "n", "(", ")", "=", "#", "1", "2", "Cl", "Br", "[nH]", "[O-]", "[N+]", ".", ">>")
SPLIT = r"(\[[^\]]+\]|Br|Cl|C|N|O|c|n|\(|\)|=|#|1|2|\.|>>)"
SPECIALS = tiny_checkpoints.SPECIALS


def tokenizer_of(words: Sequence[str], pattern: str, length: int = 64) -> Any:
    """Return a tokenizer of whole words, into which `pattern` divides a text."""
    vocabulary = {token: number for number, token in enumerate((*SPECIALS, *words))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIALS, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=length, **names)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Any:
    return open_checkpoint(str(tiny_checkpoints.save(tmp_path / "model", tiny_checkpoints.bert())))


def read(checkpoint: Any, tokenizer: Any, longest: int = 64, has_data: bool = False) -> GateTexts:
    return read_gate_texts(checkpoint, tokenizer, longest, lambda text: [text], has_data)


def test_a_tokenizer_that_knows_no_words_gets_texts_of_its_own_vocabulary(checkpoint: Any) -> None:
    reactions = tokenizer_of(ATOMS, SPLIT)
    texts = read(checkpoint, reactions)
    assert not texts.ordinary and texts.share > 0.4
    assert len(texts.made) > 0.9 * len(texts.unknown) > len(texts.given)
    assert unknown_share(reactions, texts.made) == 0
    tokens = [reactions(text)["input_ids"][1:-1] for text in texts.made]
    assert set().union(*tokens) == set(range(len(SPECIALS), len(SPECIALS) + len(ATOMS)))
    assert min(map(len, tokens)) <= 2 and max(map(len, tokens)) >= 64
    assert read(checkpoint, reactions) == texts


@pytest.mark.parametrize("drops", [False, True])
def test_an_unknown_token_that_transformers_does_not_know_of_counts(checkpoint: Any, drops: bool) -> None:
    """A tokenizer of pieces without an unknown token drops the characters that it doesn't know."""
    reactions = tokenizer_of(ATOMS, SPLIT)
    reactions.unk_token = None
    if drops:
        vocabulary = {token: number for number, token in enumerate((*SPECIALS, "~", "^", "~^"))}
        reactions.backend_tokenizer.model = models.BPE(vocabulary, [("~", "^")])
        reactions.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = read(checkpoint, reactions)
    assert len(texts.ordinary) < 3 and texts.share > 0.4 and len(texts.made) > 30


def test_blanks_are_kept_where_they_divide_the_words(checkpoint: Any) -> None:
    words = tokenizer_of(("MKT", "AYI", "GLV", " "), r"\s")
    texts = read(checkpoint, words)
    assert all(text.split() for text in texts.made) and any(len(text.split()) > 30 for text in texts.made)
    assert unknown_share(words, texts.made) == 0


@pytest.mark.parametrize("kind", ["bert", "roberta", "t5", "xlm-roberta"])
def test_a_tokenizer_of_words_gets_some_made_texts_beside_the_bundled(checkpoint: Any, kind: str) -> None:
    tokenizer = tokenization.train(kind, gate_texts.bundled_texts(), 3000, 64)
    texts = read(checkpoint, tokenizer)
    assert texts.share < 0.02 and len(texts.ordinary) > 200
    assert gate_texts.MADE <= len(texts.made) + 2 < len(texts.ordinary)
    drawn = {token for text in texts.made for token in tokenizer(text)["input_ids"]}
    assert len(drawn) > 700
    assert unknown_share(tokenizer, texts.made) < 0.05


def test_a_large_vocabulary_is_sampled_from_every_script_and_case() -> None:
    scripts = ("abc", "ABC", "Abc", "где", "ГДЕ", "שלום", "世", "１", "##ing", "Ġthe")
    vocabulary = {
        f"{text}{number}": 1000 * place + number for place, text in enumerate(scripts) for number in range(900)
    }
    ids = gate_texts.chosen_ids(vocabulary, frozenset({0}))
    assert len(ids) == gate_texts.WHOLE == len(set(ids))
    assert {number // 1000 for number in ids} == set(range(len(scripts)))
    assert 0 not in ids


def test_tokens_that_no_text_can_have_are_left_out(checkpoint: Any) -> None:
    """Some vocabularies have tokens for the output alone."""
    tokenizer = tokenizer_of(("a", "b", "c", *(f"{chr(0xE000 + at)}" for at in range(60))), ".")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex("[\ue000-\uf000]"), "\u2603")
    texts = read(checkpoint, tokenizer)
    assert set("".join(texts.made)) == {"a", "b", "c"} and len(texts.made) > gate_texts.MADE


def test_a_tokenizer_that_reads_nothing_is_refused_unless_the_user_has_data(checkpoint: Any) -> None:
    tokenizer = tokenizer_of(("\ue001", "\ue002"), ".")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex("[\ue000-\uf000]"), "\u2603")
    with pytest.raises(CheckpointUnsupported) as refused:
        read(checkpoint, tokenizer)
    assert "--verify-data" in refused.value.fix
    assert not read(checkpoint, tokenizer, has_data=True).made


def test_a_decoder_that_takes_years_is_refused(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_texts, "LONG_SECONDS", 2)
    tokenizer = tokenizer_of((*ATOMS, "a" * 40 + "!"), SPLIT)
    tokenizer.backend_tokenizer.decoder = decoders.Replace(Regex("(a|aa)+$"), "b")
    with pytest.raises(SourceError):
        read(checkpoint, tokenizer)


def test_tokens_of_a_megabyte_are_not_drawn(checkpoint: Any) -> None:
    texts = read(checkpoint, tokenizer_of((*ATOMS, "C" * 10**6), SPLIT))
    assert max(map(len, texts.made)) < 1000


@pytest.mark.slow
def test_an_export_says_how_much_of_its_texts_the_model_knows(tmp_path: Path) -> None:
    model = tiny_checkpoints.bert(vocab_size=len(SPECIALS) + len(ATOMS), initializer_range=0.5)
    model.save_pretrained(tmp_path / "model")
    tokenizer_of(ATOMS, SPLIT).save_pretrained(tmp_path / "model")
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    stated: Any = manifest.choices["texts"]
    assert stated["unknown_share"] > 0.4 and stated["made"] > 200 > stated["unknown"] + stated["known"]
    [line] = [line for line in summary(manifest, tmp_path) if "--verify-data" in line]
    assert f"{stated['made']} made" in line
    recorded = read_recorded(tmp_path / "repository/model" / REFERENCE_FILE)
    assert sum(">>" in request[TEXT_INPUT] for request in recorded.requests) > 50
