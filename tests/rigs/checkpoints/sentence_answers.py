"""Vectors of published embedders, compared with sentence-transformers' and with themselves in other batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.checkpoints.sentence_models import TEXTS, furthest


def published(folder: Path, **options: Any) -> LocalModel:
    """Return the checkpoint in `folder`/model, published and opened."""
    export_checkpoint(folder / "model", folder / "repository", name="model", **options)
    return LocalModel.open(folder / "repository", "model")


def answers(model: LocalModel, texts: tuple[str, ...] = TEXTS, **options: Any) -> list[Any]:
    """Return the vectors of `texts`."""
    return [each["embedding"] for each in model.infer_all([{"text_input": text, **options} for text in texts])]


def same_in_any_batch(model: LocalModel, **options: Any) -> list[Any]:
    """Return the vectors of TEXTS, after checking that they have the same bits alone and in the reverse order."""
    found = answers(model, **options)
    assert [answers(model, (text,), **options)[0] for text in TEXTS] == found
    assert answers(model, TEXTS[::-1], **options) == found[::-1]
    return found


def check_openvino_and_float16(folder: Path, reference: Any) -> None:
    """Check that an export for OpenVINO and for GPUs has the vectors of `reference`."""
    published(folder, precision=None, device="both", cpu_runtime="openvino")
    expected = [reference.encode([text])[0] for text in TEXTS]
    for device, limit in (("cpu", 1e-5), ("gpu", 1e-4)):
        model = LocalModel.open(folder / "repository", "model", device, "CPU")  # type: ignore[arg-type]
        assert furthest(same_in_any_batch(model), expected) <= limit
