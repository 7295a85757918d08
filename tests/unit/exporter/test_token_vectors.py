"""Token vectors of multi-vector encoders (ColBERT), as in sentence-transformers, and of any embedder on request."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.cli import main
from hfx.errors import CheckpointUnsupported, UsageError
from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_models import (
    HIDDEN,
    TEXTS,
    Recipe,
    dense,
    normalize,
    pooling,
    splade,
    token_mask,
    write_embedder,
    write_multi_vector_encoder,
    write_sparse_encoder,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]

OF_TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
PROMPTS = {"prompts": {"query": "the dog: ", "document": "a [SEP] fil"}, "default_prompt_name": "document"}
RECIPES = {
    "colbert": Recipe(
        (dense(HIDDEN, 24, "Identity", bias=False, **OF_TOKENS), partial(normalize, **OF_TOKENS), token_mask())
    ),
    "bare": Recipe((token_mask(),), PROMPTS),
    "several-layers": Recipe(
        (dense(HIDDEN, 40, "GELU", **OF_TOKENS), dense(40, 16, "Tanh", **OF_TOKENS), token_mask()),
        transformer={"max_seq_length": 20},
    ),
}


def answers(model: LocalModel, texts: tuple[str, ...] = TEXTS, **options: Any) -> list[Any]:
    found = model.infer_all([{"text_input": text, **options} for text in texts])
    assert [len(each["embedding"]) for each in found] == [each["input_tokens"] for each in found]
    return [np.array(each["embedding"]) for each in found]


def check(found: list[Any], expected: list[Any], tolerance: float = 1e-5) -> float:
    assert [each.shape for each in found] == [each.shape for each in expected]
    worst = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
    assert worst <= tolerance
    return worst


def same(found: list[Any], others: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, others, strict=True))


@pytest.mark.parametrize("name", RECIPES)
def test_token_vectors_equal_those_of_encode(tmp_path: Path, name: str) -> None:
    reference = write_multi_vector_encoder(tmp_path, RECIPES[name])
    manifest = export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert (manifest.task, manifest.choices["pooling"]) == ("feature-extraction", ["tokens"])
    assert "vectors of tokens" in manifest.choices["tokenizer"]["reason"]
    model = LocalModel.open(tmp_path / "repository", "model")
    calls: list[tuple[Any, dict[str, str]]] = [(reference.encode, {})]
    if any(reference.prompts.values()):
        calls += [(reference.encode_query, {"prompt_name": "query"})]
        calls += [(reference.encode_document, {"prompt_name": "document"})]
        calls += [(partial(reference.encode, prompt="cat "), {"prompt": "cat "})]
    for encode, chosen in calls:
        found = answers(model, **chosen)
        check(found, [encode([text])[0].numpy() for text in TEXTS])
        assert same([answers(model, (text,), **chosen)[0] for text in TEXTS], found)


def test_an_embedder_has_the_vectors_of_its_transformer_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = write_embedder(tmp_path, Recipe((pooling("mean"), dense(HIDDEN, 24), normalize)))
    export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model", token_vectors=True)
    model = LocalModel.open(tmp_path / "repository", "model")
    found = answers(model)
    expected = [reference.encode([text], output_value="token_embeddings")[0].numpy() for text in TEXTS]
    check(found, expected)
    assert same([answers(model, (text,))[0] for text in TEXTS], found)
    place = ["--local", "--repository", str(tmp_path / "repository")]
    assert main(["infer", "model", "a", "--query", "b", *place]) == 2  # it does not tell queries from documents
    assert "does not take --query" in capsys.readouterr().err


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe((pooling("mean"), token_mask())),
        Recipe((dense(HIDDEN, 24), token_mask())),  # of the text's vector, which there is none of
    ],
    ids=["pooled", "sentence"],
)
def test_multi_vector_encoders_that_pool_texts_are_unsupported(tmp_path: Path, recipe: Recipe) -> None:
    write_multi_vector_encoder(tmp_path, recipe)
    with pytest.raises(CheckpointUnsupported) as caught:
        export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model")
    assert str(tmp_path) in caught.value.message and caught.value.fix


def test_token_vectors_is_refused_for_sparse_and_shortened_embedders(tmp_path: Path) -> None:
    write_sparse_encoder(tmp_path / "sparse", Recipe((splade(),)))
    for options in ({}, {"task": "fill-mask"}):
        with pytest.raises(UsageError, match="--token-vectors"):
            export_checkpoint(tmp_path / "sparse/model", tmp_path / "repository", token_vectors=True, **options)
    write_embedder(tmp_path / "dense", Recipe((pooling("mean"),)))
    with pytest.raises(UsageError, match="--dimensions"):
        export_checkpoint(tmp_path / "dense/model", tmp_path / "repository", token_vectors=True, dimensions=True)


def test_padding_is_left_out_of_each_request_alone() -> None:
    from hfx.python_backends.tasks.feature_extraction import TokenVectors
    from hfx.python_backends.tasks.postprocessing import answer_each

    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0]], np.int32)
    vectors = torch.arange(24).reshape(2, 4, 3).float().numpy() * mask[:, :, None]
    requests = [{"embedding": vectors[i : i + 1], "attention_mask": mask[i : i + 1]} for i in (0, 1)]
    together = answer_each(TokenVectors(), [*requests, {"embedding": vectors, "attention_mask": mask}])
    shapes = [answer["embedding"].shape for answer in together if isinstance(answer, dict)]
    assert shapes == [(1, 2, 3), (1, 3, 3), (2, 3, 3)]
