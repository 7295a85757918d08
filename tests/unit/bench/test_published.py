"""Published weights: files are those of the list, checkpoints are made of them, and evaluators get hfx's answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from bench import published
from hfx.errors import FetchFailed
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from hfx.manifest import hash_file
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_models import TEXTS, static_embedding

VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "O", "Cl", "N", "=", "(", ")", ".", ">>")
MODULE = 'SMI_REGEX_PATTERN =  r"(\\[[^\\]]+]|Cl?|Br?|N|O|\\(|\\)|\\.|=|>>?)"\n'
FILES = tuple(f"tiny==1.0/{name}" for name in ("config.json", "pytorch_model.bin", "vocab.txt", "module.py"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an installed package with the weights of a small classifier, whose files are listed."""
    folder = tmp_path / "published-tiny-1.0"
    folder.mkdir()
    config = BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=3,
    )  # fmt: skip
    torch.manual_seed(1)
    torch.save(BertForSequenceClassification(config).state_dict(), folder / "pytorch_model.bin")
    config.to_json_file(folder / "config.json")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    (folder / "module.py").write_text(MODULE)
    sums = tmp_path / "sums"
    sums.write_text("".join(f"{hash_file(folder / Path(file).name).sha256}  {file}\n" for file in FILES))
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path))
    monkeypatch.setattr(published, "SUMS", sums)
    return folder


def tiny() -> published.Published:
    return published.Published("tiny", FILES, partial(published.of_reactions, "BertForSequenceClassification"))


def test_a_checkpoint_is_made_of_the_files_of_a_package(package: Path) -> None:
    folder = tiny().checkpoint()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("CC(=O)Cl>>O").tokens() == ["[CLS]", *"CC(=O)", "Cl", ">>", "O", "[SEP]"]
    assert open_checkpoint(str(folder)).config["architectures"] == ["BertForSequenceClassification"]
    weights = BertForSequenceClassification.from_pretrained(folder).state_dict()
    shipped = torch.load(package / "pytorch_model.bin", weights_only=True)
    assert all(torch.equal(weights[name], shipped[name]) for name in shipped) and len(weights) == len(shipped)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes() + b" "), Path.unlink])
def test_a_file_other_than_that_of_the_list_is_refused_by_name(
    package: Path, file: str, damage: Callable[[Path], object]
) -> None:
    tiny().checkpoint()
    path = package / Path(file).name
    damage(path)
    with pytest.raises(FetchFailed) as refusal:
        tiny().checkpoint()
    assert str(path) in refusal.value.message


def test_the_list_has_every_file_that_is_read() -> None:
    read = [published.MINILM, published.CLASSIFIER, *published.FILLERS.values()]
    files = {*(file for each in read for file in each.files), *published.EXAMPLES, published.OTHER}
    assert published.sums().keys() == files
    assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in published.sums().values())


def test_reactions_are_read_with_the_precursors_in_several_orders(package: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny().checkpoint())
    texts = '["C.O.N>Cl>CO", "CC>>O", "CBr>>C", "C:1>>C", "not one", "C.C>>N"]'  # Br is no token; maps are left out
    found = published.reactions(texts, tokenizer, 3)
    assert [text for text in found if text.endswith(">>O")] == ["CC>>O"]
    orders = [text.partition(">>")[0].split(".") for text in found if text.endswith("CO")]
    assert len(orders) == 3 and all(sorted(order) == ["C", "Cl", "N", "O"] for order in orders)
    assert {text.partition(">>")[2] for text in found} == {"CO", "O", "N"}
    texts_with_mask, ids = published.masked(tokenizer, found)
    filled = zip(texts_with_mask, tokenizer.convert_ids_to_tokens(ids), strict=True)
    assert [text.replace("[MASK]", token) for text, token in filled] == found


@pytest.mark.parametrize(
    ("answer", "scores"),
    [
        ({"label": ["LABEL_2", "LABEL_0"], "score": [0.75, 0.25]}, {"LABEL_2": 0.75, "LABEL_0": 0.25}),
        ({"fills": '[[{"score": 0.5, "token": 7, "token_str": "Cl", "sequence": "C Cl"}]]'}, {7: 0.5}),
    ],
)
def test_scores_are_by_label_or_by_token(answer: dict[str, Any], scores: dict[Any, float]) -> None:
    assert published.scores(answer) == scores


@pytest.mark.slow
@pytest.mark.usefixtures("few_ordinary_texts")
def test_evaluators_get_the_answers_of_the_published_model(tmp_path: Path) -> None:
    reference = static_embedding(tmp_path / "model")
    export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    model = LocalModel.open(tmp_path / "repository", "model")
    embedder = published.Embedder(published.vectors(model))
    rows = embedder.encode(TEXTS)
    alone = [model.infer({"text_input": text})["embedding"] for text in TEXTS]
    np.testing.assert_array_equal(rows, np.array(alone, np.float32))
    np.testing.assert_array_equal(embedder.encode_query(TEXTS, convert_to_tensor=True).numpy(), rows)

    texts = ["a good film", "the dog ran", "bad", "the cat", "a dog"]
    vectors = reference.encode(texts)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (vectors[1:] * vectors[:-1]).sum(axis=1)
    assert published.judged(embedder, texts, texts, cosines) == {"nDCG@10": 1.0, "Spearman": pytest.approx(1.0)}
    turned = published.judged(embedder, texts, [*texts[1:], texts[0]], -cosines)
    assert turned["nDCG@10"] < 1 and turned["Spearman"] < 1


def test_a_query_is_the_first_line_of_a_docstring_and_its_document_the_rest(tmp_path: Path) -> None:
    body = " ".join(["a", "line"] * 6)
    docstrings = (
        f"Return one of the rows.\n\n    {body}\n\n    {body}.",
        f"Too short\n\n    {body}, too.",
        "Return another of the rows.",
        f"Return all of the rows.\n    {body}",
    )
    functions = [f'def f{at}():\n    """{text}"""\n' for at, text in enumerate(docstrings)]
    (tmp_path / "module.py").write_text("\n\n".join(functions))
    (tmp_path / "broken.py").write_text("def f(:\n")
    expected = {"Return one of the rows.": f"{body} {body}.", "Return all of the rows.": body}
    queries, documents = published.docstrings(tmp_path, 10)
    assert dict(zip(queries, documents, strict=True)) == expected
    assert len(published.docstrings(tmp_path, 1)[0]) == 1
