"""ColBERT checkpoints of PyLate and of Stanford's library: their vectors, and what is refused of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.local.encoder import LocalModel
from tests.rigs.colbert_models import write_pylate, write_stanford
from tests.rigs.published import export_checkpoint
from tests.rigs.sentence_models import TEXTS

CASES: dict[str, Callable[[Path], Path]] = {
    "stanford": write_stanford,
    "stanford-attends": lambda folder: write_stanford(folder, attend_to_mask_tokens=True),
    "pylate": write_pylate,
    "pylate-attends": lambda folder: write_pylate(folder, attend_to_expansion_tokens=True),
}


def answers(model: LocalModel, role: str, texts: tuple[str, ...] = TEXTS) -> list[Any]:
    found = model.infer_all([{"text_input": text, "prompt_name": role} for text in texts])
    assert [len(each["embedding"]) for each in found] == [each["input_tokens"] for each in found]
    return [np.array(each["embedding"]) for each in found]


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    from sentence_transformers import MultiVectorEncoder

    folder = CASES[name](tmp_path / "model")
    reference = MultiVectorEncoder(str(folder), device="cpu")
    export_checkpoint(folder, tmp_path / "repository", name="model")
    model = LocalModel.open(tmp_path / "repository", "model")
    for role, encode in (("query", reference.encode_query), ("document", reference.encode_document)):
        found, expected = answers(model, role), [encode([text])[0].numpy() for text in TEXTS]
        assert [each.shape for each in found] == [each.shape for each in expected]
        assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) <= 1e-5
