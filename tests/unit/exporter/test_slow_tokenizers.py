"""Checkpoints without a tokenizer.json have the ids and texts of sentencepiece and of the Python tokenizers."""

from __future__ import annotations

import io
import json
import random
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hfx import names
from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.generation.languages import read_languages
from hfx.exporter.generation.settings import GenerationSettings
from hfx.exporter.parity_texts import bundled_texts, edge_texts
from hfx.exporter.slow_tokenizers import NO_TEXT, model_file, read_model, stand_ins
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer import load_tokenizer
from hfx.local.generator import LocalGenerator
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.checkpoints.generation_tokenizers import random_text
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.machine.tiers import few, full

pytestmark = pytest.mark.slow

PIECES = 500
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
FAIRSEQ = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
XLMR = ("XLMRobertaTokenizer", "xlm-roberta", "sentencepiece.bpe.model")
BPE = {"model_type": "bpe"}
NAMED = {
    "pad_id": 0,
    "bos_id": 1,
    "eos_id": 2,
    "unk_id": 3,
    "pad_piece": "[PAD]",
    "bos_piece": "[CLS]",
    "eos_piece": "[SEP]",
    "unk_piece": "[UNK]",
}
ALBERT = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": "[CLS],[SEP],[MASK]",
    "user_defined_symbols": '(,),",-,.,–,£,€',
}
# Name -> (tokenizer class, model type, file, options of the trainer).
SENTENCEPIECE: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "t5": ("T5Tokenizer", "t5", "spiece.model", T5),
    "mt5": ("T5Tokenizer", "mt5", "spiece.model", T5 | {"byte_fallback": True, "vocab_size": PIECES + 256}),
    "albert": ("AlbertTokenizer", "albert", "spiece.model", ALBERT),
    "deberta": ("DebertaV2Tokenizer", "deberta-v2", "spm.model", NAMED),
    "xlm-roberta": (*XLMR, FAIRSEQ),
    "mbart": ("MBartTokenizer", "mbart", "sentencepiece.bpe.model", FAIRSEQ),
    "pegasus": ("PegasusTokenizer", "pegasus", "spiece.model", T5),
    "identity": (*XLMR, FAIRSEQ | {"normalization_rule_name": "identity"}),
    "folded": (*XLMR, FAIRSEQ | {"normalization_rule_name": "nfkc_cf"}),
    "spaces": (*XLMR, FAIRSEQ | {"remove_extra_whitespaces": False, "normalization_rule_name": "nfkc"}),
    "no prefix": (*XLMR, FAIRSEQ | {"add_dummy_prefix": False}),
    "symbols": (*XLMR, FAIRSEQ | {"user_defined_symbols": "Tel.,the,//", "control_symbols": "<ctrl>"}),
    "t5 bpe": ("T5Tokenizer", "t5", "spiece.model", T5 | BPE),
    "deberta bpe": ("DebertaV2Tokenizer", "deberta-v2", "spm.model", NAMED | BPE),
    "xlm-roberta bpe": (*XLMR, FAIRSEQ | BPE),
    "mbart bpe": ("MBartTokenizer", "mbart", "sentencepiece.bpe.model", FAIRSEQ | BPE),
    "pegasus bpe": ("PegasusTokenizer", "pegasus", "spiece.model", T5 | BPE),
    "nllb bpe": ("NllbTokenizer", "nllb", "sentencepiece.bpe.model", FAIRSEQ | BPE),
    "bpe bytes": ("T5Tokenizer", "t5", "spiece.model", T5 | BPE | {"byte_fallback": True, "vocab_size": PIECES + 256}),
    "bpe spaces": (*XLMR, FAIRSEQ | BPE | {"remove_extra_whitespaces": False, "normalization_rule_name": "identity"}),
    "bpe symbols": (*XLMR, FAIRSEQ | BPE | {"user_defined_symbols": "Tel.,the,//", "control_symbols": "<ctrl>"}),
    "characters": (*XLMR, FAIRSEQ | {"model_type": "char"}),
}
REFUSED: dict[str, dict[str, Any]] = {
    "whole words": {"model_type": "word"},
    "spaces behind words": {"treat_whitespace_as_suffix": True},
}
SPELLS_SPECIAL = ("<", "[")
# As those of Llama are trained.
LLAMA = FAIRSEQ | BPE | {
    "byte_fallback": True, "vocab_size": PIECES + 256, "split_digits": True, "allow_whitespace_only_pieces": True,
    "remove_extra_whitespaces": False, "normalization_rule_name": "identity",
}  # fmt: skip
LLAMA_MODEL = ("LlamaTokenizer", "llama", "tokenizer.model")
SENTENCEPIECE |= {
    "llama": (*LLAMA_MODEL, LLAMA),
    "llama unigram": (*LLAMA_MODEL, LLAMA | {"model_type": "unigram"}),
    "llama symbols": (*LLAMA_MODEL, LLAMA | {"user_defined_symbols": "Tel.,the,//"}),
    "llama no prefix": (*LLAMA_MODEL, LLAMA | {"add_dummy_prefix": False}),
}
CODES = (">>fra<<", ">>deu<<")


def train(file: Path, texts: Sequence[str], **options: Any) -> None:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **{"vocab_size": PIECES, **options},
    )
    file.write_bytes(model.getvalue())


def write(folder: Path, model_type: str, tokenizer_class: str, *vocabulary: str, **settings: Any) -> Path:
    """Write the JSON files of a checkpoint; return `folder`."""
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class} | settings))
    if vocabulary:
        ids = {token: place for place, token in enumerate(dict.fromkeys(vocabulary))}
        (folder / "vocab.json").write_text(json.dumps(ids))
    return folder


def texts(count: int) -> Iterator[str]:
    """Yield bundled texts, edge cases, and `count` random texts of scripts, control characters and languages."""
    yield from [*bundled_texts(), *edge_texts(100), "\u0391\u03a3 \u03a3\u0391\u03a3. \u03a3"]
    draw = random.Random(1)
    for number in range(count):
        text = random_text(draw)
        wild = ((0, 32), (0x80, 0x3000), (0x20, 0x7F), (0xE000, 0xFFFF))
        characters = "".join(chr(draw.randrange(*draw.choice(wild))) for _ in range(20))
        yield (text, f">>fra<< {text}", f">>deu<<{text}", f">>xyz<< {text}", characters)[number % 5]


def loaded(folder: Path) -> Any:
    config = json.loads((folder / "config.json").read_text()) if (folder / "config.json").is_file() else {}
    return load_tokenizer(Checkpoint(str(folder), folder, None, {"vocab_size": 10**6} | config, ()))


# One of each normalization, of each sort of symbols and of each trainer, in any class.
COMMON = ("t5", "mt5", "albert", "deberta", "pegasus", "folded", "spaces", "symbols", "nllb bpe", "bpe bytes",
          "bpe symbols", "characters", "llama", "llama unigram")  # fmt: skip


@pytest.fixture(scope="module", params=few(SENTENCEPIECE, *COMMON))
def sentencepiece_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer_class, model_type, file, options = SENTENCEPIECE[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    train(folder / file, bundled_texts(), **options)
    return write(folder, model_type, tokenizer_class, **({"extra_ids": 0} if model_type == "mt5" else {}))


def as_albert(text: str) -> str:
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).lower()


def test_ids_are_those_of_sentencepiece(sentencepiece_folder: Path) -> None:
    import sentencepiece

    tokenizer = loaded(sentencepiece_folder)
    assert tokenizer.is_fast
    (file,) = sentencepiece_folder.glob("*.model")
    reference = sentencepiece.SentencePieceProcessor(model_file=str(file))
    prepare: Callable[[str], str] = as_albert if type(tokenizer).__name__ == "AlbertTokenizer" else str
    vocabulary, compared = tokenizer.get_vocab(), 0
    for symbol, character in stand_ins(read_model(file)).items():
        vocabulary[symbol] = vocabulary[character]
    for text in texts(300):
        if any(opening in text for opening in SPELLS_SPECIAL):
            continue  # special tokens are no pieces
        expected = [vocabulary.get(p, tokenizer.unk_token_id) for p in reference.encode(prepare(text), out_type=str)]
        assert tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] == expected, text
        compared += 1
    assert compared > 400


def test_words_that_are_split_at_punctuation_first_are_refused(tmp_path: Path) -> None:
    train(tmp_path / "spm.model", bundled_texts(), **NAMED)
    with pytest.raises(CheckpointUnsupported, match="split_by_punct"):
        loaded(write(tmp_path, "deberta-v2", "DebertaV2Tokenizer", split_by_punct=True))


@pytest.mark.parametrize("legacy", [True, False, None])
def test_non_legacy_llama_adds_a_space_before_the_first_word_only(legacy: bool | None, tmp_path: Path) -> None:
    import sentencepiece

    train(tmp_path / LLAMA_MODEL[2], bundled_texts(), **LLAMA)
    tokenizer = loaded(write(tmp_path, "llama", "LlamaTokenizer", **({} if legacy is None else {"legacy": legacy})))
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / LLAMA_MODEL[2]))
    behind = ["b"] if legacy is False else reference.encode("b", out_type=str)  # in transformers 4 it is true
    assert tokenizer.tokenize("a</s>b") == [*reference.encode("a", out_type=str), "</s>", *behind]
    for text in ("  a", " ", "a  b ", "\n a", "\u2581a", "if a:\n    return b\n"):
        ids = reference.encode(text)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        assert tokenizer.decode(ids) == reference.decode(ids)


def test_a_tokenizer_model_of_tiktoken_is_left_to_transformers(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    assert model_file(tmp_path) is None


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_no_fast_tokenizer_is_equal_to_is_refused(kind: str, tmp_path: Path) -> None:
    train(tmp_path / XLMR[2], bundled_texts(), **FAIRSEQ, **REFUSED[kind])
    with pytest.raises(CheckpointUnsupported, match=f"is a SentencePiece model with {kind}"):
        loaded(write(tmp_path, XLMR[1], XLMR[0]))


@pytest.mark.parametrize("tokenizer_class", ["MarianTokenizer", "XLMRobertaTokenizer", "XGLMTokenizer"])
def test_a_tokenizer_that_differs_from_sentencepiece_on_a_text_is_refused(tokenizer_class: str, tmp_path: Path) -> None:
    """Marian's of byte pairs, one of which control characters alone make a space, and XGLM's, which is empty."""
    if tokenizer_class == "MarianTokenizer":
        train(tmp_path / "source.spm", bundled_texts(), **BPE)
        train(tmp_path / "target.spm", bundled_texts(), **BPE)
        vocabulary = ("</s>", "<unk>", *pieces(tmp_path / "source.spm"), "<pad>")
        write(tmp_path, "marian", tokenizer_class, *vocabulary)
    elif tokenizer_class == "XGLMTokenizer":
        train(tmp_path / XLMR[2], bundled_texts(), **FAIRSEQ)
        write(tmp_path, "xglm", tokenizer_class)
    else:
        train(tmp_path / XLMR[2], bundled_texts(), **FAIRSEQ, remove_extra_whitespaces=False)
        write(tmp_path, XLMR[1], tokenizer_class)
    with pytest.raises(CheckpointUnsupported, match="otherwise than sentencepiece"):
        loaded(tmp_path)


def pieces(file: Path) -> list[str]:
    return [piece.piece for piece in read_model(file).pieces if piece.type not in NO_TEXT]


@pytest.fixture(scope="module")
def marian_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, lines = tmp_path_factory.mktemp("marian"), bundled_texts()
    train(folder / "source.spm", lines[::2])
    train(folder / "target.spm", lines[1::2])
    both = (*pieces(folder / "source.spm"), *pieces(folder / "target.spm"))
    return write(folder, "marian", "MarianTokenizer", "</s>", "<unk>", *both, *CODES, "<pad>")


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def m2m_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("m2m")
    file = folder / "sentencepiece.bpe.model"
    train(file, bundled_texts(), model_type=request.param)
    return write(folder, "m2m_100", "M2M100Tokenizer", "<s>", "<pad>", "</s>", "<unk>", *pieces(file), src_lang="fr")


@pytest.fixture(scope="module")
def byt5_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("byt5"), "t5", "ByT5Tokenizer")


def compare(slow: Any, fast: Any, count: int, language: str = "") -> None:
    """Check that ids are equal, and texts too, except for spaces at the end, which a stream can't take back."""
    for text in texts(count):
        if text.endswith("</s>"):
            continue  # to which Python tokenizers of bytes add no second one
        ids = slow(text, verbose=False)["input_ids"]
        assert fast(text, verbose=False)["input_ids"] == ids, text
        expected = slow.decode(ids, skip_special_tokens=True).rstrip()
        if language:  # which transformers 5 does not take for special
            expected = expected.removeprefix(language).lstrip()
        assert fast.decode(ids, skip_special_tokens=True).rstrip() == expected, text


@pytest.mark.parametrize(("kind", "name"), [("marian", "MarianTokenizer"), ("byt5", "ByT5Tokenizer")])
def test_ids_and_texts_are_those_of_the_python_tokenizer(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    import transformers

    folder = request.getfixturevalue(f"{kind}_folder")
    compare(getattr(transformers, name).from_pretrained(folder), loaded(folder), 300)


def test_a_marian_whose_answers_have_other_ids_than_its_texts_is_refused(marian_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(marian_folder, tmp_path / "checkpoint"))
    shutil.copy(folder / "vocab.json", folder / "target_vocab.json")
    write(folder, "marian", "MarianTokenizer", *json.loads((folder / "vocab.json").read_text()), separate_vocabs=True)
    with pytest.raises(CheckpointUnsupported, match="separate_vocabs"):
        loaded(folder)


def test_ids_with_a_gap_are_corrupt(marian_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(marian_folder, tmp_path / "checkpoint"))
    ids = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(ids | {"<pad>": len(ids)}))
    with pytest.raises(CheckpointCorrupt, match=r"vocab\.json"):
        loaded(folder)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x0a\xff\xff\xff\xff\x7f"])
def test_a_file_that_is_no_sentencepiece_model_is_named(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, "xlm-roberta", "XLMRobertaTokenizer")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(content)
    with pytest.raises(CheckpointCorrupt, match=r"sentencepiece\.bpe\.model is not"):
        loaded(tmp_path)


def test_m2m100_is_its_python_tokenizer_in_each_of_its_languages(m2m_folder: Path) -> None:
    from transformers import M2M100Tokenizer

    slow, fast = M2M100Tokenizer.from_pretrained(m2m_folder), loaded(m2m_folder)
    compare(slow, fast, 300, "__fr__")
    settings = GenerationSettings(
        defaults={}, eos_token_ids=(2,), pad_token_id=1, bos_token_id=0, decoder_start_token_ids=(2,)
    )
    checkpoint = Checkpoint("m2m", m2m_folder, None, {"model_type": "m2m_100", "vocab_size": len(fast)}, ())
    languages = read_languages(checkpoint, fast, settings)
    assert languages is not None
    assert (languages.ids, languages.source, languages.source_index) == (slow.lang_code_to_id, "fr", 0)
    ids = fast("a text")["input_ids"]
    for code, token_id in languages.ids.items():
        slow.src_lang = code
        assert slow("a text")["input_ids"] == [token_id, *ids[1:]]


@pytest.mark.usefixtures("least_texts")
@pytest.mark.parametrize("kind", ["marian", full("byt5")])
def test_a_checkpoint_with_a_python_tokenizer_is_exported_and_answers(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(f"{kind}_folder")
    size = len(loaded(folder))
    config = (
        {"vocab_size": size, "decoder_vocab_size": size, "eos_token_id": 0} if kind == "marian" else {"vocab_size": 384}
    )
    checkpoint = shutil.copytree(folder, tmp_path / "checkpoint")
    tiny_generators.build("marian" if kind == "marian" else "t5", **config).save_pretrained(checkpoint)
    export_checkpoint(checkpoint, tmp_path / "repository", name="m")
    with LocalGenerator.open(tmp_path / "repository", "m") as model:
        answer = model.infer({names.TEXT_INPUT: ">>fra<< A café.", names.MAX_TOKENS: 5})
        assert isinstance(answer[names.TEXT_OUTPUT], str)
