"""Routers that look queries up, and modules in separate folders, answer like sentence-transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer, SparseEncoder

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported, SourceError, UsageError
from hfx.exporter.source import open_checkpoint
from tests.attacks.damage import edit_json
from tests.rigs.checkpoints.sentence_answers import answers, sparse_vectors
from tests.rigs.checkpoints.sentence_answers import published as exported
from tests.rigs.checkpoints.sentence_models import (
    HIDDEN,
    TEXTS,
    Recipe,
    dense,
    furthest,
    normalize,
    pooling,
    splade,
    write_embedder,
    write_router,
)
from tests.rigs.machine.tiers import few

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

PROMPTS = {"prompts": {"query": "the dog: ", "odd": "a [SEP] fil"}}
RECIPES = {
    "max": Recipe((splade(),)),
    "twice": Recipe((splade(activation_function="log1p_relu"),)),
    "prompts": Recipe((splade(pooling_strategy="sum"),), PROMPTS | {"default_prompt_name": "odd"}),
    "short": Recipe((splade(),), transformer={"max_seq_length": 20}),
}
QUERY = {"prompt_name": "query"}


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, expected.max()))


# Other poolings of documents are those of any sparse encoder (test_sparse_encoders.py).
@pytest.mark.parametrize("name", few(RECIPES, "prompts"))
def test_queries_and_documents_have_the_vectors_of_the_library(tmp_path: Path, name: str) -> None:
    reference = write_router(tmp_path, RECIPES[name])
    model = exported(tmp_path)
    queries, documents = answers(model, **QUERY), answers(model)
    expected = sparse_vectors(reference.encode_query)
    assert np.array_equal(queries, expected)
    assert len(np.unique(expected, axis=0)) >= 6 and (expected == 0).sum() > expected.size / 2
    close(documents, sparse_vectors(reference.encode))
    close(answers(model, prompt_name="document"), sparse_vectors(reference.encode_document))
    assert np.array_equal(np.concatenate([answers(model, (text,), **QUERY) for text in TEXTS]), queries)
    assert np.array_equal(np.concatenate([answers(model, (text,)) for text in TEXTS]), documents)
    both = [{"text_input": text, **(QUERY if i % 3 else {})} for i, text in enumerate(TEXTS)]
    for order in (both, both[::-1]):
        mixed = [each["embedding"] for each in model.infer_all(order)]
        own = [queries[TEXTS.index(r["text_input"])] if QUERY.items() <= r.items() else None for r in order]
        own = [documents[TEXTS.index(r["text_input"])] if v is None else v for r, v in zip(order, own, strict=True)]
        assert np.array_equal(mixed, own)
    if name == "prompts":
        prompt = partial(reference.encode_query, prompt="a film in PARIS. ")
        assert np.array_equal(answers(model, prompt="a film in PARIS. ", **QUERY), sparse_vectors(prompt))


def test_a_long_query_is_cut_where_its_tokenizer_says_so(tmp_path: Path) -> None:
    write_router(tmp_path, RECIPES["max"])
    edit_json(tmp_path / "model/query_0_SparseStaticEmbedding/tokenizer_config.json", model_max_length=17)
    reference = SparseEncoder(str(tmp_path / "model"), device="cpu")
    model = exported(tmp_path)
    assert np.array_equal(answers(model, **QUERY), sparse_vectors(reference.encode_query))
    close(answers(model), sparse_vectors(reference.encode))
    assert model.infer({"text_input": "a dog " * 10, **QUERY})["truncated_tokens"] == 3


def test_the_transformer_may_be_in_the_folder_itself_as_older_versions_named_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_router(tmp_path, RECIPES["max"])
    for file in (folder / "document_0_Transformer").iterdir():
        file.rename(folder / file.name)
    library = "sentence_transformers.sparse_encoder.models"
    kinds = {
        "query_0_SparseStaticEmbedding": f"{library}.SparseStaticEmbedding.SparseStaticEmbedding",
        "": f"{library}.MLMTransformer.MLMTransformer",
        "document_1_SpladePooling": f"{library}.SpladePooling.SpladePooling",
    }
    edit_json(folder / "router_config.json", types=kinds)
    structure = {"query": [next(iter(kinds))], "document": [*kinds][1:]}
    edit_json(folder / "router_config.json", structure=structure)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    reference = SparseEncoder(str(folder), device="cpu")
    model = exported(tmp_path)
    close(answers(model), sparse_vectors(reference.encode))
    assert np.array_equal(answers(model, **QUERY), sparse_vectors(reference.encode_query))


def test_the_table_of_queries_is_part_of_what_is_hashed(tmp_path: Path) -> None:
    write_router(tmp_path, RECIPES["max"])
    before = open_checkpoint(str(tmp_path / "model")).sha256()
    weights = tmp_path / "model/query_0_SparseStaticEmbedding/model.safetensors"
    save_file({"weight": torch.rand(27)}, weights)
    assert open_checkpoint(str(tmp_path / "model")).sha256() != before


def routed(folder: Path, **changes: Any) -> None:
    edit_json(folder / "router_config.json", **changes)


def swapped(folder: Path) -> None:
    """Make a dense router of two encoders."""
    types = json.loads((folder / "router_config.json").read_text())["types"]
    types["query_0_SparseStaticEmbedding"] = "sentence_transformers.base.modules.transformer.Transformer"
    routed(folder, types=types)


DEFAULT = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
UNSUPPORTED: dict[str, tuple[Callable[[Path], None], type[SourceError]]] = {
    "two encoders": (swapped, CheckpointUnsupported),
    "queries by default": (
        partial(routed, parameters=DEFAULT | {"default_route": "query"}),
        CheckpointUnsupported,
    ),
    "the first by default": (partial(routed, parameters=DEFAULT | {"default_route": None}), CheckpointUnsupported),
    "rules": (
        partial(routed, parameters=DEFAULT | {"route_mappings": {"(None, 'text')": "query"}}),
        CheckpointUnsupported,
    ),
    "no default": (
        partial(routed, parameters={"default_route": None, "allow_empty_key": False}),
        CheckpointUnsupported,
    ),
    "active dims": (
        lambda folder: edit_json(folder / "config_sentence_transformers.json", max_active_dims=3),
        CheckpointUnsupported,
    ),
    "another tokenizer": (
        lambda folder: edit_json(folder / "query_0_SparseStaticEmbedding/tokenizer_config.json", do_lower_case=False),
        CheckpointUnsupported,
    ),
    "another table": (
        lambda folder: save_file({"weight": torch.rand(9)}, folder / "query_0_SparseStaticEmbedding/model.safetensors"),
        CheckpointCorrupt,
    ),
    "no table": (
        lambda folder: (folder / "query_0_SparseStaticEmbedding/model.safetensors").unlink(),
        CheckpointCorrupt,
    ),
    "no file": (lambda folder: (folder / "router_config.json").unlink(), CheckpointCorrupt),
    "no types": (partial(routed, types=[]), CheckpointCorrupt),
    "unknown modules": (partial(routed, structure={"query": ["a"], "document": ["b"]}), CheckpointCorrupt),
    "no routes": (partial(routed, structure={}), CheckpointCorrupt),
    "no parameters": (partial(routed, parameters=None), CheckpointCorrupt),
    "outside": (
        partial(
            routed,
            types={"../x": "sentence_transformers.SparseStaticEmbedding", "/etc": "sentence_transformers.Transformer"},
            structure={"query": ["../x"], "document": ["/etc"]},
        ),
        CheckpointUnsafe,
    ),
}


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("router")
    write_router(folder, RECIPES["max"])
    return folder / "model"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_routers_are_refused(router: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(router, tmp_path / "model")
    damage, kind = UNSUPPORTED[name]
    damage(tmp_path / "model")
    with pytest.raises(SourceError) as caught:
        exported(tmp_path)
    assert type(caught.value) is kind
    assert str(tmp_path) in caught.value.message and caught.value.fix
    if name == "two encoders":
        assert "query: Transformer; document: Transformer, SpladePooling" in caught.value.message


def test_vectors_of_tokens_are_refused(router: Path, tmp_path: Path) -> None:
    shutil.copytree(router, tmp_path / "model")
    with pytest.raises(UsageError, match="sparse vectors"):
        exported(tmp_path, token_vectors=True)


# Modules in folders of their own


def moved(folder: Path) -> None:
    """Move the Transformer as the library saved it before version 2, beside an unrelated config.json."""
    own = folder / "0_Transformer"
    own.mkdir()
    kept = ("modules.json", "config_sentence_transformers.json", "README.md")
    for file in [path for path in folder.iterdir() if path.is_file() and path.name not in kept]:
        file.rename(own / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps(modules))


def test_a_transformer_in_a_folder_of_its_own_is_the_one_that_is_read(tmp_path: Path) -> None:
    """A config.json beside it says nothing about it."""
    recipe = Recipe(
        (pooling("mean", "max"), dense(2 * HIDDEN, 24), normalize),
        PROMPTS,
        transformer={"max_seq_length": 20, "do_lower_case": True},
        cased=True,
    )
    write_embedder(tmp_path, recipe)
    moved(tmp_path / "model")
    alone = open_checkpoint(str(tmp_path / "model"))
    for beside in ('{"__version__": "1.0.0"}', '{"model_type": "roberta", "vocab_size": 5}'):
        (tmp_path / "model/config.json").write_text(beside)
        assert vars(open_checkpoint(str(tmp_path / "model"))) == vars(alone)
    reference = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    model = exported(tmp_path)
    for chosen in ({}, QUERY):
        expected = [reference.encode([text], **chosen)[0] for text in TEXTS]
        assert furthest(answers(model, **chosen), expected) <= 1e-5
    before = open_checkpoint(str(tmp_path / "model")).sha256()
    edit_json(tmp_path / "model/0_Transformer/config.json", layer_norm_eps=1e-3)
    assert open_checkpoint(str(tmp_path / "model")).sha256() != before
    shutil.rmtree(tmp_path / "model/0_Transformer")
    with pytest.raises(SourceError, match="0_Transformer"):
        open_checkpoint(str(tmp_path / "model"))
