"""ColBERT as sentence-transformers saves it: query expansion, skipped words, lengths and roles as in its encode."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx import names
from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, SourceError
from hfx.exporter.encoder.plan import make_encoder_plan
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from tests.attacks.damage import DROPPED
from tests.rigs.checkpoints import tiny_encoders
from tests.rigs.checkpoints.colbert_models import WORDS, change, write_pylate, write_stanford
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_models import (
    BARE,
    HIDDEN,
    TEXTS,
    Recipe,
    dense,
    normalize,
    pooling,
    token_mask,
    write_multi_vector_encoder,
)
from tests.rigs.machine.tiers import few
from tests.zoo import tokenization

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
LAYERS = (dense(HIDDEN, 24, "Identity", bias=False, **TOKENS), partial(normalize, **TOKENS))
FIXED = {"strategy": "fixed", "length": 32}
PROMPTS = {"prompts": {"query": "[Q] ", "document": "the dog: ", "odd": "a [SEP] fil"}}
PUNCTUATION = {"skiplist_words": [*string.punctuation]}
MASKED = (*LAYERS, token_mask(**PUNCTUATION))


def recipe(mask: dict[str, Any] = PUNCTUATION, settings: dict[str, Any] = PROMPTS, **transformer: Any) -> Recipe:
    """Return a ColBERT with these fields of its last module, its own files and its first module."""
    return Recipe((*LAYERS, token_mask(**mask)), settings, transformer, words=WORDS)


RECIPES = {
    "plain": recipe({}, {}),
    "fixed": recipe(query_expansion=FIXED),
    "fixed-attends": recipe(query_expansion=FIXED | {"attend": True, "length": 40}, document_length=20),
    "fixed-beyond-its-length": recipe(query_expansion=FIXED | {"length": 48}, max_seq_length=24, document_length=40),
    "min": recipe(query_expansion={"strategy": "min", "length": 20}),
    "min-attends": recipe(query_expansion={"strategy": "min", "length": 20, "attend": True}, max_seq_length=30),
    "min-beyond-its-length": recipe(query_expansion={"strategy": "min", "length": 40}, max_seq_length=24),
    "min-and-length": recipe(query_expansion={"strategy": "min", "length": 20}, query_length=33),
    "another-token": recipe(query_expansion=FIXED | {"token": "dog"}),
    "lengths": recipe(query_length=17, document_length=30),
    "length-of-queries": recipe(query_length=40, max_seq_length=20),
    "words": recipe({"skiplist_words": ["the", ".", "##s", "nowhere"]}, {}, query_expansion=FIXED),
    "words-of-queries": recipe({"skiplist_words": ["the", "."], "skiplist_tasks": ["query"]}, query_expansion=FIXED),
    "words-of-both": recipe({"skiplist_words": ["[UNK]", "a", "?"], "skiplist_tasks": ["query", "document"]}),
    "default-prompt": recipe(settings=PROMPTS | {"default_prompt_name": "odd"}, query_expansion=FIXED),
    "lower-case": Recipe(MASKED, PROMPTS, {"do_lower_case": True, "query_expansion": FIXED}, cased=True, words=WORDS),
    "layers": Recipe(
        (dense(HIDDEN, 40, "GELU", **TOKENS), dense(40, 16, **TOKENS), token_mask(**PUNCTUATION)),
        transformer={"query_expansion": FIXED},
        words=WORDS,
    ),
    "mask-before-norm": Recipe((*LAYERS[:1], token_mask(**PUNCTUATION), *LAYERS[1:]), PROMPTS, words=WORDS),
}


def write_of_type(folder: Path, model_type: str, pieces: str, **transformer: Any) -> Any:
    """Save a ColBERT of another architecture; return the model as the library reads it back."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Transformer

    torch.manual_seed(1)
    tokenization.train(pieces, [*TEXTS, *string.punctuation], 400, 64).save_pretrained(folder / "base")
    tiny_encoders.build(model_type, "AutoModel", vocab_size=400).save_pretrained(folder / "base")
    modules = [Transformer(str(folder / "base"), **transformer), *(make() for make in MASKED)]
    MultiVectorEncoder(modules=modules, device="cpu", **PROMPTS).save_pretrained(str(folder / "model"), **BARE)
    return MultiVectorEncoder(str(folder / "model"), device="cpu")


def write_again(folder: Path, write: Callable[[Path], Path]) -> Any:
    """Save a ColBERT of another library by sentence-transformers; return the model as the library reads it back."""
    from sentence_transformers import MultiVectorEncoder

    MultiVectorEncoder(str(write(folder / "base")), device="cpu").save_pretrained(str(folder / "model"), **BARE)
    return MultiVectorEncoder(str(folder / "model"), device="cpu")


CASES: dict[str, Callable[[Path], Any]] = {
    **{name: partial(write_multi_vector_encoder, recipe=each) for name, each in RECIPES.items()},
    "decoder": partial(
        write_multi_vector_encoder,
        recipe=Recipe(
            (token_mask(skiplist_words=["a"]),),
            PROMPTS,
            {"query_expansion": {"strategy": "min", "length": 24}},
            decoder="qwen3",
            side="right",
        ),
    ),
    "xlm-roberta": partial(
        write_of_type, model_type="xlm-roberta", pieces="xlm-roberta", query_expansion={"strategy": "min", "length": 24}
    ),
    "modernbert": partial(
        write_of_type, model_type="modernbert", pieces="roberta", query_expansion=FIXED | {"attend": True}
    ),
    "pylate-saved-again": partial(write_again, write=write_pylate),
    "stanford-saved-again": partial(write_again, write=write_stanford),
}


@pytest.mark.parametrize("name", CASES)
def test_ids_of_queries_and_documents_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    reference = CASES[name](tmp_path)
    plan = make_encoder_plan(open_checkpoint(str(tmp_path / "model")), ExportOptions())
    tokenizer, prompts = plan.kind.load_tokenizer(plan.checkpoint), reference.prompts
    for role in ("query", "document"):
        for text in TEXTS:
            read = prompts.get(role, "") + text
            found = plan.kind.expected_ids(
                tokenizer, {names.TEXT_INPUT: read, names.PROMPT_NAME: role}, plan.max_length
            )
            assert found == reference.preprocess([read], task=role)["input_ids"].tolist()


@pytest.mark.parametrize("name", few(CASES, "fixed-attends", "words-of-both", "layers", "decoder"))
def test_query_and_document_vectors_equal_those_of_encode(tmp_path: Path, name: str) -> None:
    reference = CASES[name](tmp_path)
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert (manifest.task, manifest.choices["pooling"]) == ("feature-extraction", ["tokens"])
    assert "vectors of tokens" in manifest.choices["tokenizer"]["reason"]
    model = LocalModel.open(tmp_path / "repository", "model")
    calls: list[tuple[Any, dict[str, str]]] = [
        (reference.encode_query, {"prompt_name": "query"}),
        (reference.encode_document, {"prompt_name": "document"}),
        (partial(reference.encode, task="document"), {}),
        (partial(reference.encode_query, prompt="cat "), {"prompt": "cat ", "prompt_name": "query"}),
        (partial(reference.encode, task="document", prompt="cat "), {"prompt": "cat "}),
    ]
    for encode, chosen in calls:
        found = answers(model, TEXTS, **chosen)
        expected = [encode([text])[0].numpy() for text in TEXTS]
        assert [each.shape for each in found] == [each.shape for each in expected]
        assert max(np.abs(a - b).max(initial=0) for a, b in zip(found, expected, strict=True)) <= 1e-5
        alone = [answers(model, [text], **chosen)[0] for text in TEXTS]
        assert all(np.array_equal(a, b) for a, b in zip(alone, found, strict=True))


def answers(model: LocalModel, texts: Any, **options: Any) -> list[Any]:
    found = model.infer_all([{"text_input": text, **options} for text in texts])
    return [np.array(each["embedding"]).reshape(each["input_tokens"], -1) for each in found]


def joined_tokens() -> Any:
    """Return a maker of the module that joins vectors of a document."""
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    return HierarchicalTokenPooling(pool_factor=2)


def expansion(**fields: Any) -> Callable[[Path], None]:
    """Return a change of the expansion in the transformer's file."""
    kept = {name: value for name, value in (FIXED | fields).items() if value is not DROPPED}
    return lambda folder: change(folder / "sentence_bert_config.json", query_expansion=kept)


REFUSED: dict[str, tuple[Recipe, Callable[[Path], None], type[SourceError], str]] = {
    "allowlist": (recipe({"keep_only_token_ids": [5]}), lambda folder: None, CheckpointUnsupported, "keep_only_token"),
    "strategy": (recipe(), expansion(strategy="most"), CheckpointCorrupt, "query_expansion in .* no strategy of"),
    "length": (recipe(), expansion(length="32"), CheckpointCorrupt, "length in .*'32'"),
    "no-length": (recipe(), expansion(length=DROPPED), CheckpointCorrupt, "query_expansion in .* no length"),
    "short": (recipe(), expansion(length=8), CheckpointCorrupt, "length in .*'8'"),
    "attend": (recipe(), expansion(attend=1), CheckpointCorrupt, "attend in .*'1'"),
    "token": (
        recipe(),
        expansion(token="nowhere"),
        CheckpointUnsupported,
        "nowhere tokens, which have no id",
    ),
    "long": (recipe(), expansion(length=65), CheckpointUnsupported, "65 tokens.*64"),
    "skipped": (
        recipe({"skiplist_words": ["[MASK]"], "skiplist_tasks": ["query"]}, query_expansion=FIXED),
        lambda folder: None,
        CheckpointUnsupported,
        "have no vectors",
    ),
    "pylate": (
        recipe(),
        lambda folder: change(folder / "config_sentence_transformers.json", query_prefix="[Q] "),
        CheckpointUnsupported,
        "PyLate's query_prefix",
    ),
    "two-masks": (
        Recipe((*LAYERS, token_mask(), token_mask()), words=WORDS),
        lambda folder: None,
        CheckpointUnsupported,
        "MultiVectorMask, MultiVectorMask",
    ),
    "joined-tokens": (
        Recipe((*LAYERS, token_mask(), joined_tokens), words=WORDS),
        lambda folder: None,
        CheckpointUnsupported,
        "HierarchicalTokenPooling",
    ),
    "pooled": (
        Recipe((pooling("mean"), token_mask()), words=WORDS),
        lambda folder: None,
        CheckpointUnsupported,
        "Pooling",
    ),
    "vectors-of-texts": (
        Recipe((dense(HIDDEN, 24), token_mask()), words=WORDS),
        lambda folder: None,
        CheckpointUnsupported,
        "Dense",
    ),
    "left": (
        Recipe((token_mask(),), transformer={"query_expansion": FIXED}, decoder="qwen3"),
        lambda folder: None,
        CheckpointUnsupported,
        "on the left",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_unsupported_multi_vector_checkpoint_is_refused_with_a_fix(tmp_path: Path, name: str) -> None:
    written, damage, error, message = REFUSED[name]
    write_multi_vector_encoder(tmp_path, written)
    damage(tmp_path / "model")
    with pytest.raises(error, match=message) as caught:
        export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert caught.value.fix


def test_the_longest_text_may_be_bounded(tmp_path: Path) -> None:
    write_multi_vector_encoder(tmp_path, RECIPES["min"])
    export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model", max_length=30)
    model = LocalModel.open(tmp_path / "repository", "model")
    for role in ({}, {"prompt_name": "query"}):
        assert model.infer({"text_input": "the dog " * 100, **role})["truncated_tokens"] > 90
    settings = json.loads((tmp_path / "repository/model_tokenize/1/settings.json").read_text())
    assert [settings["roles"][name]["length"] for name in ("query", "document")] == [30, 30]
