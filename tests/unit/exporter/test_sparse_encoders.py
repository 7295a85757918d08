"""Sparse encoders (SPLADE) saved by sentence-transformers answer like its encode after an export."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.errors import CheckpointUnsupported
from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_answers import answers, sparse_vectors
from tests.rigs.checkpoints.sentence_models import TEXTS, Recipe, splade, write_sparse_encoder
from tests.rigs.machine.tiers import few

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

PROMPTS = {"prompts": {"query": "the dog: ", "odd": "a [SEP] fil"}, "default_prompt_name": "query"}
RECIPES = {
    "max": Recipe((splade(),)),
    "sum": Recipe((splade(pooling_strategy="sum"),)),
    "max-twice": Recipe((splade(activation_function="log1p_relu"),)),
    "sum-twice": Recipe((splade(pooling_strategy="sum", activation_function="log1p_relu"),), PROMPTS),
    "active": Recipe((splade(),), {"max_active_dims": 5}),
    "more-active-than-there-are": Recipe((splade(),), {"max_active_dims": 5000}),
    "short": Recipe((splade(),), PROMPTS, transformer={"max_seq_length": 20, "do_lower_case": True}, cased=True),
}


@pytest.mark.parametrize("name", few(RECIPES, "active", "short"))
def test_sparse_vectors_equal_those_of_encode(tmp_path: Path, name: str) -> None:
    reference = write_sparse_encoder(tmp_path, RECIPES[name])
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert manifest.task == "feature-extraction"
    assert manifest.choices["pooling"] == [f"splade-{reference[1].pooling_strategy}"]
    model = LocalModel.open(tmp_path / "repository", "model")
    expected = sparse_vectors(reference.encode)
    assert len(np.unique(expected.round(3), axis=0)) >= 9 and (expected == 0).any() and (expected > 0).any()
    found = np.array(answers(model))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, expected.max()))
    assert np.array_equal(found > 0, expected > 1e-6)
    assert np.array_equal(np.concatenate([answers(model, (text,)) for text in TEXTS]), found)
    for encode, chosen in [
        *((partial(reference.encode, prompt_name=each), {"prompt_name": each}) for each in reference.prompts),
        *(
            [(reference.encode_query, {"prompt_name": "query"})]
            if "default_prompt_name" in RECIPES[name].settings
            else []
        ),
    ]:
        if any(reference.prompts.values()):
            np.testing.assert_allclose(
                answers(model, **chosen), sparse_vectors(encode), rtol=0, atol=1e-5 * expected.max()
            )


def test_a_batch_has_as_many_rows_as_its_logits_have_room(tmp_path: Path) -> None:
    from hfx.exporter.encoder.kinds.embedder import VECTORS_BYTES
    from hfx.exporter.encoder.plan import make_encoder_plan
    from hfx.exporter.options import ExportOptions
    from hfx.exporter.source import open_checkpoint

    write_sparse_encoder(tmp_path, RECIPES["max"])
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": 10**6}))
    plan = make_encoder_plan(open_checkpoint(str(tmp_path / "model")), ExportOptions())
    assert plan.max_batch_size == VECTORS_BYTES // (4 * 10**6 * plan.max_length)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}),
        ("1_SpladePooling/config.json", {"activation_function": "gelu"}),
        ("sentence_bert_config.json", {"modality_config": {"text": {"method": "forward", "method_output_name": "x"}}}),
        ("modules.json", [{"type": "sentence_transformers.CNN"}, {"type": "sentence_transformers.x.SpladePooling"}]),
    ],
    ids=str,
)
def test_unsupported_sparse_poolings_are_refused(tmp_path: Path, file: str, change: Any) -> None:
    write_sparse_encoder(tmp_path, RECIPES["max"])
    path = tmp_path / "model" / file
    stated = json.loads(path.read_text())
    if isinstance(change, dict):
        stated |= change
    else:
        stated = [{**old, **new} for old, new in zip(stated, change, strict=True)]
    path.write_text(json.dumps(stated))
    with pytest.raises(CheckpointUnsupported) as caught:
        export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert str(tmp_path) in caught.value.message and caught.value.fix
