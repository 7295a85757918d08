"""Token vectors of any embedder on request; test_multi_vector_encoders.py has those of ColBERT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfx.cli import main
from hfx.errors import UsageError
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
    write_embedder,
    write_sparse_encoder,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_ordinary_texts")]


def answers(model: LocalModel, texts: tuple[str, ...] = TEXTS, **options: Any) -> list[Any]:
    found = model.infer_all([{"text_input": text, **options} for text in texts])
    assert [len(each["embedding"]) for each in found] == [each["input_tokens"] for each in found]
    return [np.array(each["embedding"]) for each in found]


def test_an_embedder_has_the_vectors_of_its_transformer_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = write_embedder(tmp_path, Recipe((pooling("mean"), dense(HIDDEN, 24), normalize)))
    export_checkpoint(tmp_path / "model", tmp_path / "repository", name="model", token_vectors=True)
    model = LocalModel.open(tmp_path / "repository", "model")
    found = answers(model)
    expected = [reference.encode([text], output_value="token_embeddings")[0].numpy() for text in TEXTS]
    for vectors, alone, text in zip(found, expected, TEXTS, strict=True):
        np.testing.assert_allclose(vectors, alone, rtol=0, atol=1e-5)
        assert np.array_equal(answers(model, (text,))[0], vectors)
    place = ["--local", "--repository", str(tmp_path / "repository")]
    assert main(["infer", "model", "a", "--query", "b", *place]) == 2  # it does not tell queries from documents
    assert "does not take --query" in capsys.readouterr().err


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
