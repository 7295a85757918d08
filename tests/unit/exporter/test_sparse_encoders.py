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
from tests.rigs.checkpoints.sentence_models import TEXTS, Recipe, furthest, splade, write_sparse_encoder
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


def answers(model: LocalModel, texts: tuple[str, ...] = TEXTS, **options: Any) -> Any:
    return np.array(
        [each["embedding"] for each in model.infer_all([{"text_input": text, **options} for text in texts])]
    )


def encoded(encode: Any) -> Any:
    return np.stack([encode([text], convert_to_sparse_tensor=False)[0].numpy() for text in TEXTS])


@pytest.mark.parametrize("name", few(RECIPES, "sum-twice", "active", "short"))
def test_sparse_vectors_equal_those_of_encode(tmp_path: Path, name: str) -> None:
    reference = write_sparse_encoder(tmp_path, RECIPES[name])
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert manifest.task == "feature-extraction"
    assert manifest.choices["pooling"] == [f"splade-{reference[1].pooling_strategy}"]
    model = LocalModel.open(tmp_path / "repository", "model")
    expected = encoded(reference.encode)
    assert len(np.unique(expected.round(3), axis=0)) >= 9 and (expected == 0).any() and (expected > 0).any()
    found = answers(model)
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
            np.testing.assert_allclose(answers(model, **chosen), encoded(encode), rtol=0, atol=1e-5 * expected.max())


@pytest.mark.parametrize("name", few(["max", "sum-twice"], "max"))
def test_int8_vectors_are_the_same_alone_and_in_a_batch(tmp_path: Path, name: str) -> None:
    reference = write_sparse_encoder(tmp_path, RECIPES[name])
    options: Any = {"precision": "int8", "cpu_runtime": "native", "max_drop": 0.5}
    export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model", **options)
    model = LocalModel.open(tmp_path / "repository", "model")
    found = answers(model)
    assert np.array_equal(np.concatenate([answers(model, (text,)) for text in TEXTS]), found)
    assert furthest(found, encoded(reference.encode)) < 0.05


def test_openvino_and_float16_have_the_same_vectors(tmp_path: Path) -> None:
    reference = write_sparse_encoder(tmp_path, RECIPES["sum"])
    options: Any = {"precision": None, "device": "both", "cpu_runtime": "openvino"}
    export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model", **options)
    for device, limit in (("cpu", 1e-5), ("gpu", 1e-4)):
        model = LocalModel.open(tmp_path / "repository", "model", device, "CPU")  # type: ignore[arg-type]
        assert furthest(answers(model), encoded(reference.encode)) <= limit


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
