"""Tokenizers that are missing, damaged, foreign or slow, or that do not fit the model."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported, SourceError
from hfx.exporter import gate_texts, tokenizer_checks
from hfx.exporter.encoder import one_hop
from hfx.exporter.encoder.checkpoint.sentence_transformers import put_into_lower_case
from hfx.exporter.gate_texts import read_gate_texts
from hfx.exporter.parity_texts import bundled_texts
from hfx.exporter.slow_tokenizers import read_model
from hfx.exporter.source import open_checkpoint
from hfx.exporter.tokenizer import load_tokenizer
from hfx.front import model_files
from hfx.python_backends.encoding import make_encoder
from hfx.python_backends.errors import ModelDamaged
from hfx.python_backends.generation import generator
from hfx.python_backends.settings import Settings
from hfx.python_backends.tasks import fill_mask, token_classification
from tests.attacks.damage import edit_json, load, plan, refused
from tests.rigs.machine.tiers import full
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


USUAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
WORD = {"content": "abc", "single_word": True}  # beside a token that matches the empty text, `a` takes all memory
FOLLOWED = "PreTrainedTokenizerFast"  # with this class, transformers follows tokenizer.json


def sequence(*normalizers: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(normalizers)}


def add_tokens(folder: Path, *tokens: dict[str, Any], in_config: bool = False, **parts: Any) -> None:
    """Add tokens to tokenizer.json or tokenizer_config.json, and set `parts` of tokenizer.json."""
    content = json.loads((folder / "tokenizer.json").read_text())
    first = len(content["model"]["vocab"])
    if in_config:
        added = {str(first + at): USUAL | token for at, token in enumerate(tokens)}
        edit_json(folder / "tokenizer_config.json", added_tokens_decoder=added)
    else:
        parts["added_tokens"] = [
            *content["added_tokens"],
            *({"id": first + at, **USUAL, **token} for at, token in enumerate(tokens)),
        ]
    edit_json(folder / "tokenizer.json", **parts)
    edit_json(folder / "tokenizer_config.json", tokenizer_class=FOLLOWED)


def write_endless(folder: Path) -> None:
    """Write a WordPiece of letters with a token that its normalizer turns into nothing, and a token of whole words."""
    vocabulary = {token: at for at, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"))}
    model = json.loads((folder / "tokenizer.json").read_text())["model"] | {"vocab": vocabulary}
    edit_json(folder / "tokenizer.json", model=model)
    add_tokens(folder, {"content": "  "}, WORD, normalizer=STRIP, pre_tokenizer=None)


def test_an_export_with_3_gb_refuses_a_token_of_which_the_normalizer_leaves_nothing(
    folder: Path, tmp_path: Path
) -> None:
    write_endless(folder)
    run = "import sys; from hfx.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", run, "export", str(folder), "--name", "x", "--repository", str(tmp_path / "out")]
    limited = ["bash", "-c", 'ulimit -v 3145728; exec "$@"', "bash", *command]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert "added token '  '" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "x").exists()


@pytest.mark.parametrize(
    ("tokens", "normalizer", "in_config"),
    [
        (["  "], STRIP, False),
        (["  "], sequence(sequence(sequence(STRIP))), False),
        (["  "], STRIP, True),
        (["film"], {"type": "Replace", "pattern": {"Regex": "[\\s\\S]"}, "content": ""}, False),
        (["\u0301"], sequence({"type": "NFD"}, {"type": "StripAccents"}), True),
    ],
    ids=["strip", "nested", "in tokenizer_config.json", "replaced", "accents"],
)
def test_an_added_token_that_matches_the_empty_text_is_unsafe(
    folder: Path, tokens: list[str], normalizer: dict[str, Any], in_config: bool
) -> None:
    add_tokens(folder, *({"content": text} for text in tokens), WORD, normalizer=normalizer, in_config=in_config)
    assert repr(tokens[0]) in refused(CheckpointUnsafe, folder, lambda: read(folder))


def test_an_added_token_that_matches_the_empty_text_in_lower_case_is_unsafe(folder: Path) -> None:
    """Sentence transformers put texts into lower case if sentence_bert_config.json says so."""
    replaced = {"type": "Replace", "pattern": {"String": "film"}, "content": ""}
    add_tokens(folder, {"content": "FILM"}, WORD, normalizer=replaced)
    checkpoint, tokenizer = open_checkpoint(str(folder)), read(folder)
    (folder / "modules.json").write_text("[]")
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert "'FILM'" in refused(CheckpointUnsafe, folder, lambda: put_into_lower_case(tokenizer, checkpoint))


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
@pytest.mark.parametrize("blank", [" ", "\t\u00a0"])
def test_a_blank_added_token_that_strips_blanks_is_unsafe(folder: Path, side: str, blank: str) -> None:
    """Of n blanks, each takes those beside it: 32,768 blanks take 10 GB."""
    add_tokens(folder, {"content": blank, side: True})
    assert repr(blank) in refused(CheckpointUnsafe, folder, lambda: read(folder))


def test_blank_added_tokens_that_stay_blank_are_read(folder: Path) -> None:
    """Those of CodeGen and GPT-NeoX are runs of spaces, normalized, and no normalizer strips them."""
    add_tokens(folder, {"content": "  "}, {"content": "   "}, WORD, normalizer={"type": "NFC"})
    tokenizer = read(folder)
    assert tokenizer.tokenize("the   cat  abc") == ["the", "   ", "cat", "  ", "abc"]


def open_for_front(folder: Path) -> object:
    return model_files._open_tokenizer(folder / "tokenizer.json")


def open_for_encoder(folder: Path) -> object:
    return make_encoder(folder / "tokenizer.json", Settings("text-classification", 64, (64,)))


def open_for_generator(folder: Path) -> object:
    return generator._tokenizer(folder / "tokenizer.json")


def open_for_masks(folder: Path) -> object:
    return fill_mask.Postprocessor.read({}, folder)


def open_for_tokens(folder: Path) -> object:
    return token_classification.Postprocessor.read({}, folder)


@pytest.mark.parametrize(
    ("opened", "error"),
    [
        (open_for_front, ValueError),
        (open_for_encoder, ValueError),
        (open_for_generator, ModelDamaged),
        (open_for_masks, ValueError),
        (open_for_tokens, ValueError),
    ],
)
def test_a_served_tokenizer_with_an_empty_token_is_refused_before_a_text_is_read(
    folder: Path, opened: Callable[[Path], object], error: type[Exception]
) -> None:
    write_endless(folder)
    with pytest.raises(error) as caught:
        opened(folder)
    assert "'  '" in str(caught.value) and str(folder / "tokenizer.json") in str(caught.value)


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


def growing(text: str) -> dict[str, Any]:
    """Return a normalizer that makes 10**12 characters of `text`, and changes nothing else."""
    return sequence(*[{"type": "Replace", "pattern": {"String": text}, "content": text * 1000}] * 4)


RARE = "\ue123"  # no text of an export has it
BACKTRACKING = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
PAIR = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
DECODER = {"type": "Replace", "pattern": {"Regex": "[\\s\\S]"}, "content": "x" * 1000}


def template(**forms: Any) -> dict[str, Any]:
    usual = {"single": [PAIR[0]], "pair": PAIR}
    return {"type": "TemplateProcessing", "special_tokens": {}, **usual, **forms}


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({"pre_tokenizer": BACKTRACKING}, CheckpointCorrupt),
        (replacing("x" * 1000, 4), CheckpointUnsafe),
        full(replacing("xy", 19), CheckpointUnsafe),
        full({"normalizer": sequence(*[{"type": "Prepend", "prepend": "x" * 100_000}] * 50)}, CheckpointUnsafe),
        full({"post_processor": template(single=[PAIR[0]] * 20_000)}, CheckpointUnsafe),
        ({"post_processor": template(pair=PAIR * 20_000)}, CheckpointUnsafe),
        ({"decoder": {"type": "Sequence", "decoders": [DECODER] * 4}}, CheckpointUnsafe),
    ],
    ids=["backtracks", "grows", "takes long", "prepends", "repeats texts", "repeats pairs", "decodes"],
)
def test_a_tokenizer_without_bounds_is_refused(
    folder: Path, parts: dict[str, Any], kind: type[SourceError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_checks, "SECONDS", 2)
    edit_json(folder / "tokenizer.json", **parts)
    refused(kind, folder, lambda: read(folder))


def test_an_added_token_of_the_config_that_grows_without_bounds_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers normalizes it when it loads the tokenizer."""
    monkeypatch.setattr(tokenizer_checks, "SECONDS", 2)
    add_tokens(folder, {"content": RARE}, normalizer=growing(RARE), in_config=True)
    refused(CheckpointUnsafe, folder, lambda: read(folder))


def test_a_tokenizer_that_grows_for_generated_texts_alone_is_refused_by_the_proof(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[RARE] = vocabulary.pop("good")
    add_tokens(folder, model=content["model"], normalizer=growing(RARE))
    decided, tokenizer = plan(folder), read(folder)
    monkeypatch.setattr(one_hop, "LONG_SECONDS", 2)
    refused(CheckpointUnsafe, folder, lambda: one_hop.start_proof(decided, tokenizer, []).result())


@pytest.mark.parametrize(
    ("normalizer", "max_length", "prompt"),
    [({"type": "Replace", "pattern": {"String": " "}, "content": "x" * 1000}, 1 << 16, ""), (growing(RARE), 512, RARE)],
    ids=["of the model's length", "behind a prompt"],
)
def test_a_tokenizer_that_grows_too_much_for_a_text_of_the_gate_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, normalizer: dict[str, Any], max_length: int, prompt: str
) -> None:
    add_tokens(folder, normalizer=normalizer)
    checkpoint, tokenizer = open_checkpoint(str(folder)), read(folder)
    monkeypatch.setattr(gate_texts, "LONG_SECONDS", 2)
    refused(
        CheckpointUnsafe,
        folder,
        lambda: read_gate_texts(checkpoint, tokenizer, max_length, lambda text: [prompt + text], has_data=False),
    )


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
