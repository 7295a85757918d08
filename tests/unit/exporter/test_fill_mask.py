"""Fill-mask: the graph returns the model's own logits at the masks only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hfx import names
from hfx.errors import CheckpointUnsupported, RequestRefused, UsageError
from hfx.exporter.encoder.checkpoint.architectures import ENCODERS
from hfx.exporter.encoder.graph.build import build_graph
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.encoder.kinds.masks import prepare, vocabulary
from hfx.exporter.encoder.plan import make_encoder_plan
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.local.encoder import LocalModel
from hfx.names import Task
from tests.attacks.damage import edit_json
from tests.rigs.checkpoints import tiny_checkpoints, tiny_encoders
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.files import onnx_toys
from tests.rigs.machine.tiers import full

TASK = usual_kind(Task.FILL_MASK)
MASK = 4
TOLERANCE = 5e-5  # float32 sums in other orders
# The places of the masks in each row of a batch, and the rows' lengths.
BATCHES = (([3], 9), ([0, 5], 17), ([1], 3)), (([2], 40),), (([*range(16)], 16), ([6], 7))
USUAL = ("bert", "roberta", "distilbert", "electra", "albert", "deberta-v2", "mpnet", "modernbert", "mobilebert")
# Whose masked language models have other architectures' names; plbart has none.
OTHERS = {"bart", "flaubert", "mbart", "mvp", "plbart", "xlm"}


@pytest.mark.parametrize("model_type", [name if name in USUAL else full(name) for name in sorted(ENCODERS - OTHERS)])
def test_the_graph_has_the_logits_of_the_masks(model_type: str) -> None:
    model = tiny_encoders.build(model_type, TASK.auto_class)
    rows: Any = [[row(*each) for each in batch] for batch in BATCHES]
    with torch.no_grad():
        whole = [[model(ids[None]).logits[0].numpy() for ids in batch] for batch in rows]
    prepare(model, SimpleNamespace(mask_token_id=MASK))
    run = onnx_toys.session(graph := build_graph(model, TASK, model.config.pad_token_id or 0, None))
    inputs = {value.name for value in graph.graph.input}
    for batch, own, expected in zip(BATCHES, rows, whole, strict=True):
        feed = {names.INPUT_IDS: np.concatenate(own), names.ITEM_SHAPE: np.array([[len(ids)] for ids in own])}
        feed[names.ATTENTION_MASK] = np.ones_like(feed[names.INPUT_IDS])
        feed[names.TOKEN_TYPE_IDS] = np.zeros_like(feed[names.INPUT_IDS])
        [found] = run(**{name: array.astype(np.int32) for name, array in feed.items() if name in inputs})
        assert found.shape[1] == max(len(places) for places, _ in batch)
        for (places, _), got, logits in zip(batch, found, expected, strict=True):
            np.testing.assert_allclose(got[: len(places)], logits[places], atol=TOLERANCE, rtol=1e-5)


def row(places: list[int], length: int) -> Any:
    """Return random token ids with masks at `places`."""
    ids = np.random.default_rng(length).integers(5, tiny_encoders.VOCABULARY, length)
    ids[places] = MASK
    return torch.from_numpy(ids)


@pytest.mark.parametrize(("vocabulary", "rows"), [(30_522, 64), (50_265, 41), (250_002, 8), (10**9, 1)])
def test_a_batch_has_rows_whose_logits_fit_memory(tmp_path: Path, vocabulary: int, rows: int) -> None:
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": vocabulary}
    checkpoint = Checkpoint("m", tmp_path, None, {**config, "max_position_embeddings": 512}, ())
    assert make_encoder_plan(checkpoint, ExportOptions()).max_batch_size == rows
    with pytest.raises(UsageError, match="out of range"):
        make_encoder_plan(checkpoint, ExportOptions(max_batch_size=10_000))


def test_a_model_whose_texts_lose_their_beginning_is_exported(tmp_path: Path) -> None:
    folder = tiny_checkpoints.save(tmp_path / "tiny", tiny_checkpoints.bert("ForMaskedLM"))
    edit_json(folder / "tokenizer_config.json", truncation_side="left")
    export_checkpoint(folder, tmp_path / "repository", name="m")
    model = LocalModel.open(tmp_path / "repository", "m")
    assert model.infer({names.TEXT_INPUT: "the cat " * 90 + "[MASK]"})[names.TRUNCATED_TOKENS] > 90
    with pytest.raises(RequestRefused, match="no mask token"):
        model.infer({names.TEXT_INPUT: "[MASK]" + "the cat " * 90})


@pytest.mark.parametrize("size", [None, 0, -1, "many", 2.5, True])
def test_a_vocabulary_of_no_size_is_refused(size: Any) -> None:
    with pytest.raises(CheckpointUnsupported, match="vocab_size"):
        vocabulary({"vocab_size": size})
