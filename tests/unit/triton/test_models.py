"""Facts about a model's requests that follow from its configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hfx.python_backends.deploy import tokenize_files
from hfx.python_backends.onnxruntime.config import MODEL_FILE
from hfx.repository.config_pbtxt import ModelConfig, TensorSpec
from hfx.triton.models import answers_later, may_hang
from tests.rigs.files import repositories

TEXT = (TensorSpec("x", "TYPE_INT32", (1,)),)


@pytest.mark.parametrize(
    ("backend", "parameters", "later", "hangs"),
    [
        ("python", {}, False, False),
        ("python", {"engine": "m_stream"}, True, True),
        ("onnxruntime", {}, False, True),  # only its large requests are answered later
        ("hfx_onnxruntime", {}, False, True),
        ("python", {MODEL_FILE: "model.onnx"}, False, True),  # a net in a bundle
        ("hfx_0123456789ab", {MODEL_FILE: "net/model.onnx"}, False, False),  # a native model: in Triton's own process
    ],
)
def test_models_whose_requests_outlive_their_execute_are_known(
    backend: str, parameters: dict[str, str], later: bool, hangs: bool, tmp_path: Path
) -> None:
    config = ModelConfig("m", 1, TEXT, TEXT, backend, instance_kind="KIND_CPU", parameters=parameters)
    repositories.put(tmp_path, config)
    assert answers_later(tmp_path / "m", "cpu") is later
    assert may_hang(tmp_path / "m", "cpu") is hangs


def test_tokenizing_steps_that_answer_large_requests_later_may_hang(tmp_path: Path) -> None:
    repositories.put(tmp_path, ModelConfig("m_tokenize", 1, TEXT, TEXT, "python", instance_kind="KIND_CPU"))
    assert not may_hang(tmp_path / "m_tokenize", "cpu")
    (tmp_path / "m_tokenize" / "1").mkdir(exist_ok=True)
    shutil.copy(tokenize_files()["large_requests.py"], tmp_path / "m_tokenize" / "1")
    assert may_hang(tmp_path / "m_tokenize", "cpu")
