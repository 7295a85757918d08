"""Checkpoints of GLiNER and GLiClass: which are read, and which are refused, by the names of their fields."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, SourceError
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.names import Kind, Task
from tests.rigs.checkpoints.labelled import save_gliclass, save_gliner

GLINER, GLICLASS = "gliner_config.json", "config.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("labelled")
    for name in ("gliner", "gliclass"):
        (folder / name).mkdir()
    return {GLINER: save_gliner(folder / "gliner"), GLICLASS: save_gliclass(folder / "gliclass")}


@pytest.fixture
def changed(saved: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a checkpoint, and changes fields of its configuration."""

    def change(file: str, **fields: Any) -> Path:
        copy = tmp_path / "copy"
        shutil.copytree(saved[file], copy)
        config = json.loads((copy / file).read_text()) | fields
        (copy / file).write_text(json.dumps(config))
        return copy

    return change


def plan(folder: Path) -> Any:
    return make_plan(open_checkpoint(str(folder)), ExportOptions(name="m", device="cpu"))


def test_the_kind_and_the_task_are_told_by_the_files(saved: dict[str, Path]) -> None:
    gliner, gliclass = plan(saved[GLINER]), plan(saved[GLICLASS])
    assert (gliner.kind.name, gliner.kind.task) == (Kind.SPANS, Task.TOKEN_CLASSIFICATION)
    assert (gliclass.kind.name, gliclass.kind.task) == (Kind.LABELS, Task.ZERO_SHOT_CLASSIFICATION)
    assert gliner.notes == gliclass.notes == (), "the tensors of the heads are not left out"


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        (GLINER, {"relations_layer": "gcn"}),
        (GLINER, {"labels_decoder": "gpt2"}),
        (GLINER, {"decoder_config": {}}),
        (GLINER, {"span_mode": "conv_share"}),
        (GLINER, {"post_fusion_schema": "l2l-l2t"}),
        (GLINER, {"fuse_layers": True}),
        (GLINER, {"represent_spans": True}),
        (GLINER, {"span_encoder_config": {}}),
        (GLINER, {"subtoken_pooling": "mean"}),
        (GLINER, {"words_splitter_type": "spacy"}),
        (GLINER, {"precomputed_prompts_mode": True}),
        (GLICLASS, {"architecture_type": "bi-encoder"}),
        (GLICLASS, {"architecture_type": "decoder-kv"}),
        (GLICLASS, {"scorer_type": "hopfield"}),
        (GLICLASS, {"pooling_strategy": "last"}),
        (GLICLASS, {"prompt_first": False}),
        (GLICLASS, {"use_lstm": True}),
        (GLICLASS, {"use_segment_embeddings": True}),
        (GLICLASS, {"use_calibrator": True}),
        (GLICLASS, {"multimodal": True}),
        (GLICLASS, {"projector_hidden_act": "rrelu"}),
    ],
    ids=str,
)
def test_a_variant_that_is_not_exported_is_refused_by_its_field(
    changed: Callable[..., Path], file: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointUnsupported, match=next(iter(fields))) as refusal:
        plan(changed(file, **fields))
    assert file in refusal.value.message


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        (GLINER, {"hidden_size": 10**9}),
        (GLINER, {"hidden_size": "512"}),
        (GLINER, {"max_width": 0}),
        (GLINER, {"max_len": None}),
        (GLINER, {"num_rnn_layers": -1}),
        (GLINER, {"class_token_index": "x"}),
        (GLINER, {"encoder_config": {"model_type": "bert", "hidden_size": 10**9}}),
        (GLICLASS, {"class_token_index": -2}),
        (GLICLASS, {"hidden_size": True}),
    ],
    ids=str,
)
def test_a_field_of_another_type_or_size_is_corrupt(
    changed: Callable[..., Path], file: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointCorrupt):
        plan(changed(file, **fields))


@pytest.mark.parametrize("encoder", [[], "bert", 3])
def test_an_encoder_config_that_is_no_object_is_refused(changed: Callable[..., Path], encoder: Any) -> None:
    with pytest.raises(SourceError, match="encoder_config"):
        plan(changed(GLINER, encoder_config=encoder))


def test_a_head_of_other_shapes_is_refused_before_it_takes_memory(changed: Callable[..., Path]) -> None:
    made = plan(changed(GLINER, hidden_size=99_000))
    with pytest.raises(CheckpointCorrupt, match="other shapes"):
        made.kind.load_model(made.checkpoint, made.kind.load_tokenizer(made.checkpoint))


def test_a_marker_with_another_number_is_refused(changed: Callable[..., Path]) -> None:
    made = plan(changed(GLICLASS, class_token_index=5))
    with pytest.raises(CheckpointCorrupt, match="<<LABEL>>"):
        made.kind.reader_settings(made.checkpoint, made.kind.load_tokenizer(made.checkpoint), 64)


# Files of other checkpoints


def without_files(saved: Path, folder: Path, model: str) -> Path:
    """Copy the checkpoint `saved` without a tokenizer and `encoder_config`, as gliner first saved them."""
    folder.mkdir()
    shutil.copy(saved / "model.safetensors", folder)
    config = json.loads((saved / GLINER).read_text())
    kept = {name: config[name] for name in ("hidden_size", "max_width", "max_len")}
    (folder / GLINER).write_text(json.dumps(kept | {"model_name": model}))
    return folder


def test_a_checkpoint_without_a_tokenizer_has_that_of_its_encoder_on_the_hub(
    saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.rigs.checkpoints import tiny_checkpoints

    commit = "a" * 40
    model = tmp_path / "models--some--encoder"
    snapshot = model / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    tiny_checkpoints.tokenizer().save_pretrained(snapshot)
    encoder = json.loads((saved[GLINER] / GLINER).read_text())["encoder_config"]
    (snapshot / "config.json").write_text(json.dumps(encoder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    old = open_checkpoint(str(without_files(saved[GLINER], tmp_path / "old", "some/encoder")))
    kind: Any = make_plan(old, ExportOptions(name="m", device="cpu")).kind
    tokenizer = kind.load_tokenizer(old)
    assert old.config["vocab_size"] == json.loads((saved[GLINER] / GLINER).read_text())["vocab_size"]
    tokens = tokenizer(["<<ENT>>", "person", "<<SEP>>"], is_split_into_words=True).tokens()
    assert [token for token in tokens if token.startswith("<<")] == ["<<ENT>>", "<<SEP>>"]


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a b/c", "", "x" * 300])
def test_a_model_name_that_is_no_model_of_the_hub_is_not_followed(
    saved: dict[str, Path], tmp_path: Path, name: str
) -> None:
    with pytest.raises(CheckpointUnsupported, match="model_name"):
        open_checkpoint(str(without_files(saved[GLINER], tmp_path / "old", name)))


def test_a_bi_encoder_without_the_files_of_its_labels_is_refused(changed: Callable[..., Path]) -> None:
    folder = changed(GLINER, labels_encoder="some/encoder", labels_encoder_config=None)
    with pytest.raises(CheckpointUnsupported, match="labels"):
        plan(folder)
