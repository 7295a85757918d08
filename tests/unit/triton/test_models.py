"""What a model's configuration says of its requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfx.python_backends.onnxruntime.config import MODEL_FILE
from hfx.repository.config_pbtxt import ModelConfig, TensorSpec
from hfx.triton.models import answers_later
from tests.rigs import repositories

TEXT = (TensorSpec("x", "TYPE_INT32", (1,)),)


@pytest.mark.parametrize(
    ("backend", "parameters", "later"),
    [
        ("python", {}, False),
        ("python", {"engine": "m_stream"}, True),
        ("onnxruntime", {}, True),
        ("hfx_onnxruntime", {}, True),
        ("python", {MODEL_FILE: "model.onnx"}, True),  # a net in a bundle
    ],
)
def test_models_whose_requests_outlive_their_execute_are_known(
    backend: str, parameters: dict[str, str], later: bool, tmp_path: Path
) -> None:
    config = ModelConfig("m", 1, TEXT, TEXT, backend, instance_kind="KIND_CPU", parameters=parameters)
    repositories.put(tmp_path, config)
    assert answers_later(tmp_path / "m", "cpu") is later
