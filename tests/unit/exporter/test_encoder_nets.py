"""The net of an encoder in hfx's onnxruntime, with the last step in its process: which models that is done to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.repository import parse_config
from hfx.repository.config_pbtxt import EnsembleStep, TensorSpec
from hfx.triton.encoder_nets import use_backend
from tests.rigs.repositories import ENSEMBLE, IDS, LOGITS, POSTPROCESS, TEXT, TOKENIZE, TOP_K, build, put

GIVEN = replace(TOP_K, optional=False)
STEPS = (
    EnsembleStep("m_tokenize", {"text_input": "text_input", "top_k": "top_k"}, {"input_ids": "ids", "top_k": "given"}),
    ENSEMBLE.steps[1],
    EnsembleStep("m_postprocess", {"logits": "logits", "top_k": "given"}, {"score": "score"}),
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model as it is exported: its tokenizing step makes a tensor of an optional input."""
    folder = build(tmp_path / "repository")
    put(folder, replace(TOKENIZE, inputs=(TEXT, TOP_K), outputs=(IDS, GIVEN)))
    put(folder, replace(POSTPROCESS, inputs=(LOGITS, GIVEN)))
    put(folder, replace(ENSEMBLE, steps=STEPS))
    return folder


def read(repository: Path, path: str) -> Any:
    return parse_config((repository / path).read_text())


def test_a_step_of_arithmetic_is_done_by_the_net(repository: Path) -> None:
    use_backend(repository, "onnxruntime")
    assert {path.name for path in repository.iterdir()} == {"m", "m_tokenize", "m_net"}
    assert (repository / "m_net/postprocess/settings.json").is_file()
    for path in ("m_net/config.pbtxt", "m_net/configs/cpu.pbtxt", "m_net/configs/gpu.pbtxt"):
        net = read(repository, path)
        assert [tensor.name for tensor in net.output] == ["logits", "score"]
        assert {tensor.name: tensor.optional for tensor in net.input} == {"input_ids": False, "top_k": True}
        assert net.parameters["postprocess"].string_value == "postprocess"
    tokenize, net = read(repository, "m/config.pbtxt").ensemble_scheduling.step
    assert (tokenize.model_name, net.model_name) == ("m_tokenize", "m_net")
    # The tensor is there in every request: without it in some, Triton would divide the net's batches.
    assert dict(net.input_map) == {"input_ids": "ids", "top_k": "given"} and tokenize.output_map["top_k"] == "given"
    assert dict(net.output_map) == {"score": "score"}


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: put(folder, replace(POSTPROCESS, inputs=(LOGITS, TOP_K))),  # as before 0.1.0: it may be absent
        lambda folder: put(folder, replace(POSTPROCESS, inputs=(LOGITS, GIVEN, TEXT))),
        lambda folder: put(folder, replace(POSTPROCESS, inputs=(LOGITS, GIVEN, TensorSpec("o", "TYPE_INT32", (-1,))))),
        lambda folder: (folder / "m/hfx.json").unlink(),
    ],
    ids=["an optional input", "texts", "a value a token", "not made by hfx"],
)
def test_other_steps_stay(repository: Path, change: Callable[[Path], None]) -> None:
    change(repository)
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    use_backend(repository, "onnxruntime")
    assert before == {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}


def test_a_step_that_was_given_several_processes_keeps_them(repository: Path) -> None:
    config = repository / "m_postprocess/config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    use_backend(repository, "onnxruntime")
    assert config.is_file()


def test_another_name_of_the_backend_is_for_nets_of_hfx_alone(repository: Path) -> None:
    config = repository / "m_postprocess/config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    shutil.copytree(repository / "m_net", repository / "foreign")
    use_backend(repository, "hfx_onnxruntime")
    for path in ("config.pbtxt", "configs/cpu.pbtxt", "configs/gpu.pbtxt"):
        assert read(repository, f"m_net/{path}").backend == "hfx_onnxruntime"
        assert read(repository, f"foreign/{path}").backend == "onnxruntime"
    assert config.is_file()
