"""Checkpoints whose tokenizer has a token without an embedding, such as BART-large-CNN's `<mask>`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hfx import names
from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, RequestRefused, UsageError
from hfx.exporter.source import open_checkpoint
from hfx.exporter.tokenizer import load_tokenizer
from hfx.local.encoder import LocalModel
from hfx.local.generator import LocalGenerator
from tests.rigs.checkpoints import generator_checkpoints, tiny_checkpoints
from tests.rigs.checkpoints.encoder_line import encoder_for
from tests.rigs.checkpoints.published import export_checkpoint

pytestmark = pytest.mark.slow
MASK = "<mask>"
GOOD, BAD = "a good film", f"a {MASK} film"


def published(folder: Path, **options: Any) -> Path:
    """Return a repository with the checkpoint in `folder` as the model `m`."""
    repository = folder.parent / "repository"
    export_checkpoint(folder, repository, name="m", **options)
    return repository


def add_mask(folder: Path, tokenizer: Any, size: int) -> Path:
    """Save `tokenizer` with MASK behind the `size` ids that have an embedding."""
    tokenizer.add_special_tokens({"mask_token": MASK})
    assert tokenizer.convert_tokens_to_ids(MASK) == size
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_checkpoints.save(tmp_path_factory.mktemp("classifier") / "checkpoint", tiny_checkpoints.bert())
    return add_mask(folder, tiny_checkpoints.tokenizer(), len(tiny_checkpoints.SPECIALS + tiny_checkpoints.WORDS))


@pytest.fixture(scope="module")
def summarizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BART with as many embeddings as its tokenizer has tokens without MASK."""
    tokenizer = generator_checkpoints.tokenizer()
    size = len(tokenizer)
    folder = tmp_path_factory.mktemp("summarizer") / "checkpoint"
    generator_checkpoints.save(folder, "bart", {"max_new_tokens": 6}, vocab_size=size)
    return add_mask(folder, tokenizer, size)


def test_a_classifier_refuses_the_token_and_answers_other_texts(classifier: Path) -> None:
    model = LocalModel.open(published(classifier), "m")
    assert model.infer({names.TEXT_INPUT: GOOD})
    with pytest.raises(RequestRefused, match=MASK):
        model.infer({names.TEXT_INPUT: BAD})


@pytest.mark.parametrize("task", ["text-classification", "text-ranking"])
def test_a_tokenizer_without_special_tokens_gives_some_texts_no_tokens(task: str, tmp_path: Path) -> None:
    """Such texts are refused, and the gate leaves them out."""
    words = tiny_checkpoints.tokenizer().backend_tokenizer
    words.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tiny_checkpoints.save(tmp_path / "checkpoint", tiny_checkpoints.bert(num_labels=1))
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    model = LocalModel.open(published(tmp_path / "checkpoint", task=task), "m")
    query = {names.QUERY: ""} if task == "text-ranking" else {}
    assert model.infer({names.TEXT_INPUT: GOOD, **query})
    with pytest.raises(RequestRefused, match=r"ha(s|ve) no tokens"):
        model.infer({names.TEXT_INPUT: " \n", **query})


def test_labels_that_leave_a_text_no_room_are_the_checkpoint_s_fault(tmp_path: Path) -> None:
    tokenizer = tiny_checkpoints.tokenizer()
    labels = {"id2label": {0: "entailment", 1: "other"}, "label2id": {"entailment": 0, "other": 1}}
    tiny_checkpoints.save(tmp_path / "checkpoint", tiny_checkpoints.bert(max_position_embeddings=16, **labels))
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        tmp_path / "checkpoint"
    )
    with pytest.raises(CheckpointUnsupported, match="in 16 tokens"):
        published(tmp_path / "checkpoint", task="zero-shot-classification")


def test_one_such_text_in_a_batch_is_refused_alone(tmp_path: Path) -> None:
    tokenizer = tiny_checkpoints.tokenizer()
    size = len(tokenizer)
    tokenizer.add_special_tokens({"mask_token": MASK})
    items: dict[str, list[Any]] = {
        "text-classification": [GOOD, BAD],
        "token-classification": [GOOD, BAD],
        "question-answering": [("a cat?", GOOD), ("a cat?", BAD)],
        "zero-shot-classification": [(GOOD, ["cat"]), (GOOD, [MASK])],
        "text-ranking": [("a cat?", GOOD), ("a cat?", BAD)],
    }
    for task, (good, bad) in items.items():
        folder = tmp_path / task
        folder.mkdir()
        encoder = encoder_for(tokenizer, task, folder, vocab_size=size)
        refusal, row = encoder.encode([bad, good])
        assert MASK in str(refusal)
        (alone,) = encoder.encode([good])
        assert [one.ids for one in row.sequences] == [one.ids for one in alone.sequences]


@pytest.mark.usefixtures("least_texts")
def test_a_summarizer_refuses_the_token_and_answers_other_texts(summarizer: Path, tmp_path: Path) -> None:
    repository = published(summarizer, task="summarization")
    with LocalGenerator.open(repository, "m") as model:
        assert model.infer({names.TEXT_INPUT: GOOD})
        with pytest.raises(RequestRefused, match=MASK):
            model.infer({names.TEXT_INPUT: BAD})
        with pytest.raises(RequestRefused, match=MASK):
            model.infer({names.TEXT_INPUT: f"{GOOD}. {BAD}. " * 20, names.LONG: "chunk"})


@pytest.mark.parametrize("kind", ["classifier", "summarizer"])
def test_data_with_the_token_is_refused(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    data = tmp_path / "data.csv"
    target = "LABEL_0" if kind == "classifier" else GOOD
    data.write_text(f"text,label,summary\n{BAD},{target},{target}\n")
    with pytest.raises((UsageError, RequestRefused), match=MASK):
        published(request.getfixturevalue(kind), force=True, verify_data=(data,))


def test_a_token_that_every_text_has_needs_an_embedding(tmp_path: Path) -> None:
    tokenizer = tiny_checkpoints.tokenizer()
    folder = tiny_checkpoints.save(tmp_path / "checkpoint", tiny_checkpoints.bert())
    tokenizer.add_special_tokens({"sep_token": MASK})
    begin, end = ("[CLS]", 2), (MASK, 21)
    tokenizer.backend_tokenizer.post_processor = processors.BertProcessing(end, begin)
    tokenizer.save_pretrained(folder)
    with pytest.raises(CheckpointCorrupt, match="21"):
        load_tokenizer(open_checkpoint(str(folder)))
