"""Vectors and scores of published encoders, as tests compare them with those of sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_models import TEXTS


def published(folder: Path, **options: Any) -> LocalModel:
    """Return the checkpoint in `folder`/model, published and opened."""
    export_checkpoint(folder / "model", folder / "repository", name="model", **options)
    return LocalModel.open(folder / "repository", "model")


def answers(model: LocalModel, texts: tuple[str, ...] = TEXTS, **options: Any) -> list[Any]:
    """Return the vectors of `texts`."""
    return [each["embedding"] for each in model.infer_all([{"text_input": text, **options} for text in texts])]


def scores(model: LocalModel, pairs: list[tuple[str, str]], **options: Any) -> list[Any]:
    """Return the scores of pairs of a query and a text."""
    requests = [{"query": query, "text_input": text, **options} for query, text in pairs]
    return [each["score"] for each in model.infer_all(requests)]


def sparse_vectors(encode: Callable[..., Any]) -> Any:
    """Return what a SparseEncoder's `encode` gives for each of TEXTS alone, as dense vectors."""
    return np.stack([encode([text], convert_to_sparse_tensor=False)[0].numpy() for text in TEXTS])


def same_in_any_batch(model: LocalModel, **options: Any) -> list[Any]:
    """Return the vectors of TEXTS, after checking that they have the same bits alone and in the reverse order."""
    found = answers(model, **options)
    assert [answers(model, (text,), **options)[0] for text in TEXTS] == found
    assert answers(model, TEXTS[::-1], **options) == found[::-1]
    return found
