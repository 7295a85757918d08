"""Encoders that become one native model in a server's own copy, and the parts of their steps that it keeps."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.names import COMPILED_TOKENIZER
from hfx.native.build import LIBRARY
from hfx.repository import parse_config
from hfx.triton.one_hop import prepare_encoders, why_not
from tests.rigs.files.repositories import NET, POSTPROCESS, TOKENIZE, build, put

CPU = {"cpu_accelerators": (("openvino", {}),)}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model whose export has proven its compiled tokenizer."""
    folder = build(tmp_path / "repository")
    for name in (COMPILED_TOKENIZER, LIBRARY):
        (folder / "m_tokenize/1" / name).write_bytes(name.encode())
    put(folder, replace(TOKENIZE, parameters={"max_queue_size": "7"}))
    return folder


def config(repository: Path, path: str) -> Any:
    return parse_config((repository / path).read_text())


def content(repository: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}


def test_the_steps_become_one_model_of_the_same_name_and_tensors(repository: Path) -> None:
    before = config(repository, "m/config.pbtxt")
    prepare_encoders(repository, None, native=True)
    assert [path.name for path in repository.iterdir()] == ["m"]
    made = config(repository, "m/config.pbtxt")
    assert made.backend == f"hfx_{hashlib.sha256(LIBRARY.encode()).hexdigest()[:12]}"
    assert (made.platform, made.max_batch_size) == ("", 64)
    assert (list(made.input), list(made.output)) == (list(before.input), list(before.output))
    assert not made.ensemble_scheduling.step and not made.HasField("dynamic_batching")
    parameters = {key: value.string_value for key, value in made.parameters.items()}
    assert parameters.items() >= {"max_queue_size": "7", "intra_op_thread_count": "4"}.items()
    version = repository / "m/1"
    assert (version / parameters["model_file"]).is_file() and Path(parameters["onnxruntime"]).is_file()
    assert (version / f"libtriton_{made.backend}.so").read_bytes() == LIBRARY.encode()
    assert {COMPILED_TOKENIZER, "settings.json", "answer.json"} <= {path.name for path in version.iterdir()}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "m/hfx.json").unlink(), "not an encoder of hfx"),
        (lambda folder: (folder / "m_tokenize/1" / COMPILED_TOKENIZER).unlink(), "no compiled tokenizer"),
        (lambda folder: put(folder, replace(NET, **CPU), "cpu"), "does not run in ONNX Runtime"),
        (
            lambda folder: edited(folder / "m_net/configs/cpu.pbtxt", "count: 1", "count: 2"),
            "m_net has its own instance_gr",
        ),
        (
            lambda folder: edited(folder / "m_postprocess/config.pbtxt", "count: 1", "count: 2"),
            "m_postprocess has its own",
        ),
        (
            lambda folder: edited(
                folder / "m_tokenize/config.pbtxt", "dynamic_batching {", "dynamic_batching { preferred_batch_size: [4]"
            ),
            "m_tokenize has its own dynamic_batching",
        ),
    ],
)
def test_encoders_that_do_not_qualify_stay_as_published(
    repository: Path, change: Callable[[Path], None], reason: str
) -> None:
    change(repository)
    before = content(repository)
    assert reason in why_not(repository, "m")
    is_encoder = (repository / "m/hfx.json").is_file()
    kept = prepare_encoders(repository, "onnxruntime", native=True)
    assert list(kept) == ["m"] * is_encoder and all(reason in each for each in kept.values())
    assert content(repository) == before


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_python_steps_on_demand_with_the_nets_of_hfx_in_its_backend(repository: Path) -> None:
    shutil.copytree(repository / "m_net", repository / "foreign")
    put(repository, replace(POSTPROCESS, name="m_postprocess"))
    prepare_encoders(repository, "hfx_onnxruntime", native=False)
    for path in ("config.pbtxt", "configs/cpu.pbtxt", "configs/gpu.pbtxt"):
        assert config(repository, f"m_net/{path}").backend == "hfx_onnxruntime"
        assert config(repository, f"foreign/{path}").backend == "onnxruntime"
    assert (repository / "m_postprocess").is_dir()
