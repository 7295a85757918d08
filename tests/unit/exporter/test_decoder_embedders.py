"""Decoders saved as embedders by sentence-transformers answer like its encode, with padding on either side.

Qwen3-Embedding and EmbeddingGemma are such models.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from hfx.names import Task
from tests.attacks.damage import DROPPED, edit_json
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_answers import (
    answers,
    published,
    same_in_any_batch,
)
from tests.rigs.checkpoints.sentence_models import (
    HIDDEN,
    TEXTS,
    Recipe,
    dense,
    furthest,
    normalize,
    pooling,
    write_embedder,
)
from tests.rigs.checkpoints.sentence_poolings import check_ids, check_pooling
from tests.rigs.machine.tiers import few

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

PROMPTS = {
    "prompts": {"query": "Instruct: find a film\nQuery:", "document": "", "title": "title: none | text: "},
    "default_prompt_name": "document",
}
WINDOW = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 100,
}
LLAMA = {"rope_parameters": LLAMA3, "attention_bias": True}
GEMMA = (pooling("mean"), dense(HIDDEN, 96, "Identity", bias=False), dense(96, 48, "Identity", bias=False), normalize)
RECIPES = {
    "qwen": Recipe((pooling("lasttoken"), normalize), PROMPTS, decoder="qwen3"),
    "qwen-padded-right": Recipe((pooling("lasttoken"), normalize), PROMPTS, decoder="qwen3", side="right"),
    "qwen-window": Recipe((pooling("lasttoken"), normalize), PROMPTS, decoder="qwen3", config=WINDOW),
    "qwen2": Recipe((pooling("lasttoken"), normalize), PROMPTS, decoder="qwen2", config=WINDOW),
    "llama": Recipe((pooling("mean", "lasttoken"), normalize), PROMPTS, decoder="llama", config=LLAMA),
    "mistral": Recipe((pooling("lasttoken"), normalize), PROMPTS, decoder="mistral", config={"sliding_window": 20}),
    "gemma": Recipe(GEMMA, PROMPTS, decoder="gemma3_text", side="right"),
    "gemma-padded-left": Recipe(GEMMA, PROMPTS, decoder="gemma3_text"),
    "gemma-causal": Recipe(
        (pooling("lasttoken", "weightedmean"),),
        PROMPTS,
        decoder="gemma3_text",
        config={"use_bidirectional_attention": False},
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_ids_and_pooling_of_decoders_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    """What an export reads of each; test_encoders.py compares the graph of each architecture."""
    reference = write_embedder(tmp_path, RECIPES[name])
    check_ids(tmp_path / "model", reference)
    check_pooling(tmp_path / "model", reference)


# The library pads Qwen on the left, and Gemma, of which test_encoder_precisions.py has int8, on the right.
@pytest.mark.parametrize("name", few(RECIPES, "qwen"))
def test_decoder_vectors_equal_encode_alone_and_in_any_batch(tmp_path: Path, name: str) -> None:
    reference = write_embedder(tmp_path, RECIPES[name])
    model = published(tmp_path)
    for prompt in (None, *PROMPTS["prompts"]):
        chosen: Any = {} if prompt is None else {"prompt_name": prompt}
        found = same_in_any_batch(model, **chosen)
        expected = [reference.encode([text], **chosen)[0] for text in TEXTS]
        assert len({vector.tobytes() for vector in expected}) >= 9
        assert furthest(found, expected) <= 1e-5
        assert furthest(found, reference.encode(list(TEXTS), **chosen)) <= 1e-5


def test_a_folder_that_names_a_generator_is_an_embedder(tmp_path: Path) -> None:
    """transformers 4 published Qwen3-Embedding so: its class is the generator's, and it has no head."""
    folder = tmp_path / "model"
    write_embedder(tmp_path, RECIPES["qwen"])
    edit_json(folder / "config.json", architectures=["Qwen3ForCausalLM"], transformers_version="4.51.3")
    edit_json(folder / "tokenizer_config.json", backend=DROPPED, model_max_length=131072)
    reference = SentenceTransformer(str(folder), device="cpu")
    manifest = export_checkpoint(folder, tmp_path / "repository", name="model")
    assert manifest.task == Task.FEATURE_EXTRACTION
    found = answers(LocalModel.open(tmp_path / "repository", "model"))
    reference.max_seq_length = 400
    assert furthest(found, [reference.encode([text])[0] for text in TEXTS]) <= 1e-5


def test_long_texts_and_other_tasks_of_decoders_have_limits(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_embedder(tmp_path, RECIPES["qwen"])
    edit_json(folder / "config.json", max_position_embeddings=32768)
    edit_json(folder / "tokenizer_config.json", model_max_length=131072)
    edit_json(folder / "sentence_bert_config.json", max_seq_length=None)
    options = ExportOptions(repository=tmp_path / "repository", name="model")
    assert make_plan(open_checkpoint(str(folder)), options).max_length == 8192
    with pytest.raises(UsageError, match="--max-length 9000"):
        make_plan(open_checkpoint(str(folder)), replace(options, max_length=9000))
    with pytest.raises(CheckpointUnsupported, match="fill-mask of 'qwen3'"):
        make_plan(open_checkpoint(str(folder)), replace(options, task=Task.FILL_MASK))
    edit_json(folder / "config.json", architectures=["GlmForCausalLM"], model_type="glm")
    with pytest.raises(CheckpointUnsupported, match="feature-extraction of 'glm'"):
        make_plan(open_checkpoint(str(folder)), options)
