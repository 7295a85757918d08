"""Embedders saved by sentence-transformers answer like its encode after an export."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.errors import CheckpointCorrupt, RequestRefused
from hfx.exporter.encoder.checkpoint.pooling import make_pooler
from hfx.exporter.encoder.checkpoint.sentence_transformers import ACTIVATIONS, POOLING_FIELDS
from hfx.exporter.encoder.kinds.embedder import Embedder
from hfx.exporter.encoder.plan import make_encoder_plan
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_answers import answers
from tests.rigs.checkpoints.sentence_answers import published as export
from tests.rigs.checkpoints.sentence_models import (
    HIDDEN,
    TEXTS,
    Recipe,
    dense,
    dropout,
    furthest,
    layer_norm,
    normalize,
    pooling,
    write_embedder,
)
from tests.rigs.checkpoints.sentence_poolings import check_ids, check_pooling
from tests.rigs.machine.tiers import few

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

MODES = tuple(POOLING_FIELDS.values())
WIDE = HIDDEN * len(MODES)
SHORT = {"max_seq_length": 20}
PROMPTS = {"prompts": {"query": "the dog: ", "passage": "A CAT? ", "odd": "the [SEP] fil", "": "b", "long": "a " * 70}}
# What is done with the vectors of tokens.
POOLED = {
    **{mode: Recipe((pooling(mode),)) for mode in MODES},
    **{f"{mode}-normalized": Recipe((pooling(mode), normalize)) for mode in ("mean", "lasttoken")},
    "all": Recipe((pooling(*MODES), normalize)),
    "max-mean-dense": Recipe((pooling("max", "mean"), dense(2 * HIDDEN, 48), normalize)),
    "weighted-and-last": Recipe((pooling("lasttoken", "weightedmean"),)),
    "two-dense": Recipe((pooling("mean"), dense(HIDDEN, 64), dense(64, 24, "Identity", bias=False), normalize)),
    "dense-before-norm": Recipe((pooling("cls"), dense(HIDDEN, 40, "GELU"), layer_norm(40))),
    "normalized-twice": Recipe((pooling("mean"), normalize, dense(HIDDEN, HIDDEN, "Identity"), normalize)),
    "layer-norm": Recipe((pooling(*MODES), layer_norm(WIDE), normalize)),
    "dropout": Recipe((pooling("mean"), dropout, normalize)),
    "residual": Recipe((pooling("mean"), dense(HIDDEN, HIDDEN, "ReLU", use_residual=True))),
    "residual-projected": Recipe((pooling("mean"), dense(HIDDEN, 48, "Mish", use_residual=True), normalize)),
    **{
        f"prompts-{mode}": Recipe((pooling(mode, include_prompt=False),), PROMPTS | {"default_prompt_name": "query"})
        for mode in MODES
    },
    "truncated-vectors": Recipe((pooling("mean"), normalize), {"truncate_dim": 24}),
}
RECIPES = POOLED | {
    "lower-case": Recipe((pooling("mean"),), transformer={"do_lower_case": True}, cased=True),
    "lower-case-twice": Recipe((pooling("mean"),), transformer={"do_lower_case": True}),
    "cased": Recipe((pooling("mean"),), cased=True),
    "short": Recipe((pooling("weightedmean"),), transformer={"max_seq_length": 20}),
    "longer-than-the-tokenizer": Recipe(
        (pooling("mean"),), transformer={"max_seq_length": 90}, config={"max_position_embeddings": 96}
    ),
    "longer-than-the-positions": Recipe((pooling("mean"),), transformer={"max_seq_length": 200}),
    "prompts": Recipe((pooling("mean"), normalize), PROMPTS),
    "prompts-short": Recipe((pooling("lasttoken", "max"),), PROMPTS, transformer={"max_seq_length": 20}),
    "prompts-cased": Recipe(
        (pooling("mean"),), PROMPTS, transformer={"do_lower_case": True, "max_seq_length": 17}, cased=True
    ),
    "prompts-not-pooled": Recipe((pooling("mean", include_prompt=False), dense(HIDDEN, 24)), {"prompts": {}}),
    "weighted-long": Recipe(
        (pooling("weightedmean", "lasttoken"),),
        transformer={"max_seq_length": 600},
        config={"max_position_embeddings": 600},
    ),
    "t5": Recipe((pooling("mean"), dense(HIDDEN, 24, "Identity", bias=False), normalize), decoder="t5"),
    "t5-gated": Recipe(
        (pooling("mean", "lasttoken"),), decoder="t5", config={"feed_forward_proj": "gated-gelu"}, transformer=SHORT
    ),
    "mt5": Recipe((pooling("max"),), decoder="mt5", config={"relative_attention_max_distance": 20}),
}
# The ids and the pooling of every recipe are compared by themselves, so few are exported; the others in make test-full.
EXPORTED = ("all", "prompts-lasttoken", "prompts-cased", "t5")
PROMPTED = ("prompts-lasttoken", "prompts-cased")
Published = Callable[[str], tuple[Any, LocalModel]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A function that returns a recipe's model as the library reads it, and its export, opened."""

    @cache
    def written(name: str) -> tuple[Any, LocalModel]:
        folder = tmp_path_factory.mktemp("pipeline")
        return write_embedder(folder, RECIPES[name]), export(folder)

    return written


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in POOLED])
def test_ids_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    check_ids(tmp_path / "model", write_embedder(tmp_path, RECIPES[name]))


@pytest.mark.parametrize("name", POOLED)
def test_tokens_are_pooled_as_by_the_library(tmp_path: Path, name: str) -> None:
    """Those of a prompt, too, which some recipes leave out."""
    reference = write_embedder(tmp_path, POOLED[name])
    for prompt in (0, 2) if name.startswith("prompts") else (0,):
        check_pooling(tmp_path / "model", reference, prompt)


@pytest.mark.parametrize("name", few(RECIPES, *EXPORTED))
def test_vectors_of_every_pipeline_equal_those_of_encode(name: str, published: Published) -> None:
    reference, model = published(name)
    positions = getattr(reference[0].config, "max_position_embeddings", reference.max_seq_length)
    reference.max_seq_length = min(reference.max_seq_length, positions)
    expected = [reference.encode([text])[0] for text in TEXTS]
    assert len({vector.tobytes() for vector in expected}) >= 9
    found = answers(model)
    assert furthest(found, expected) <= 1e-5
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert [answers(model, (text,))[0] for text in TEXTS] == found


@pytest.mark.parametrize("name", few([name for name in RECIPES if name.startswith("prompts")], *PROMPTED))
def test_prompts_give_the_vectors_of_encode(name: str, published: Published) -> None:
    reference, model = published(name)
    for encode, chosen in [
        (reference.encode_query, {"prompt_name": "query"}),
        (reference.encode_document, {"prompt_name": "document"}),
        *((partial(reference.encode, prompt_name=each), {"prompt_name": each}) for each in reference.prompts),
        *((partial(reference.encode, prompt=each), {"prompt": each}) for each in ("", "a film in PARIS. ", "cat")),
    ]:
        found = answers(model, **chosen)
        assert furthest(found, [encode([text])[0] for text in TEXTS]) <= 1e-5
        assert [answers(model, (text,), **chosen)[0] for text in TEXTS] == found
    with pytest.raises(RequestRefused, match=r"prompt_name is 'no'; .* 'query', 'document'"):
        model.infer({"text_input": "a", "prompt_name": "no"})
    with pytest.raises(RequestRefused, match="send one of them"):
        model.infer({"text_input": "a", "prompt_name": "query", "prompt": "b"})


def test_a_model_without_prompts_takes_none(published: Published) -> None:
    with pytest.raises(RequestRefused, match="has no prompts"):
        published("all")[1].infer({"text_input": "a", "prompt_name": "query"})


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_that_of_torch(tmp_path: Path, activation: str) -> None:
    reference = write_embedder(tmp_path, Recipe((pooling("mean"), dense(HIDDEN, 40, activation))))
    check_pooling(tmp_path / "model", reference, lengths=(1,) * 5)


@pytest.mark.parametrize("damage", ["missing", "misshapen"])
def test_damaged_weights_of_a_module_are_corrupt(tmp_path: Path, damage: str) -> None:
    write_embedder(tmp_path, RECIPES["two-dense"])
    file = tmp_path / "model" / "2_Dense" / "model.safetensors"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes((tmp_path / "model" / "3_Dense" / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointCorrupt, match="2_Dense"):
        export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")


def write_as_before(folder: Path, recipe: Recipe, length: int) -> None:
    """Write the files of versions 2 to 5: other class paths and field names, and pickled weights of modules."""
    import torch
    from safetensors.torch import load_file

    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        kind, place = module["type"].rsplit(".", 1)[-1], folder / module["path"]
        module["type"] = f"sentence_transformers.models.{kind}"
        if kind == "Transformer":
            old = {"max_seq_length": length, "do_lower_case": recipe.transformer.get("do_lower_case", False)}
            (folder / "sentence_bert_config.json").write_text(json.dumps(old))
            continue
        weights = place / "model.safetensors"
        if weights.exists():
            torch.save(load_file(weights), place / "pytorch_model.bin")
            weights.unlink()
        config = json.loads((place / "config.json").read_text()) if kind != "Normalize" else {}
        if kind == "Normalize":
            (place / "config.json").unlink()
        if kind == "Pooling":
            modes = config.pop("pooling_mode")
            modes = [modes] if isinstance(modes, str) else modes
            config = {field: mode in modes for field, mode in POOLING_FIELDS.items()} | {
                "word_embedding_dimension": config["embedding_dimension"],
                "include_prompt": config["include_prompt"],
            }
        if kind == "Dense":
            config = {key: config[key] for key in ("in_features", "out_features", "bias", "activation_function")}
        if config:
            (place / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(json.dumps(modules))


def parts(folder: Path) -> tuple[Any, ...]:
    """Return all that an export takes from the library's files."""
    checkpoint = open_checkpoint(str(folder))
    plan = make_encoder_plan(checkpoint, ExportOptions())
    assert isinstance(plan.kind, Embedder)
    weights = make_pooler(plan.kind.pooling, checkpoint).state_dict()
    ids = plan.kind.load_tokenizer(checkpoint)(list(TEXTS))["input_ids"]
    return plan.kind, plan.max_length, ids, {name: value.tolist() for name, value in weights.items()}


@pytest.mark.parametrize("name", ["max-mean-dense", "short", "prompts-mean", "layer-norm"])
def test_files_of_older_versions_are_read_as_those_of_today(tmp_path: Path, name: str) -> None:
    length = write_embedder(tmp_path, RECIPES[name]).max_seq_length
    today = parts(tmp_path / "model")
    write_as_before(tmp_path / "model", RECIPES[name], length)
    assert parts(tmp_path / "model") == today


def test_files_of_older_versions_mean_what_the_library_reads(tmp_path: Path) -> None:
    """With do_lower_case, texts of such files have other ids than those of the same model saved today."""
    from sentence_transformers import SentenceTransformer

    recipe, folder = RECIPES["lower-case"], tmp_path / "model"
    write_as_before(folder, recipe, write_embedder(tmp_path, recipe).max_seq_length)
    reference = SentenceTransformer(str(folder), device="cpu")
    assert furthest(answers(export(tmp_path)), [reference.encode([text])[0] for text in TEXTS]) <= 1e-5
