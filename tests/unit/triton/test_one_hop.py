"""Encoders that become one native model in a server's own copy, and the parts of their steps that it keeps."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from hfx.exporter.adapters.adapted import ADAPTED
from hfx.exporter.variants import VARIANTS
from hfx.names import COMPILED_TOKENIZER
from hfx.native.build import LIBRARY, TARGETS
from hfx.python_backends.onnxruntime.config import OPERATORS, ROWS_FILE, operators_for
from hfx.repository import parse_config
from hfx.triton import one_hop
from hfx.triton.models import KIND_GPU
from hfx.triton.one_hop import CUDA_PROVIDER, HOSTING, merge, prepare_encoders, runtime_library, why_not
from tests.rigs.files.repositories import NET, NET_GPU, POSTPROCESS, TOKENIZE, build, on_openvino, put, save

HAS_CUDA_PROVIDER = (Path(onnxruntime.__file__).parent / "capi" / CUDA_PROVIDER).exists()


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
        (on_openvino, "does not run in ONNX Runtime"),
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


@pytest.mark.parametrize("machine", ["aarch64", "riscv64"])
def test_a_model_without_a_library_for_the_processor_keeps_its_steps(repository: Path, machine: str) -> None:
    assert machine in why_not(repository, "m", machine=machine)


def test_a_model_for_another_processor_gets_its_library_and_no_operators_of_others(repository: Path) -> None:
    tokenize, library = repository / "m_tokenize/1", TARGETS["aarch64"].library
    (tokenize / library).write_bytes(b"for aarch64")
    operators = {name: "x" for machine in TARGETS for name in operators_for(machine)}
    put(repository, replace(NET, parameters={**NET.parameters, **operators}), "cpu")
    assert why_not(repository, "m", machine="aarch64") == ""
    merge(repository, "m", "libonnxruntime.so", machine="aarch64")
    made = config(repository, "m/config.pbtxt")
    assert made.backend == f"hfx_{hashlib.sha256(b'for aarch64').hexdigest()[:12]}"
    assert (repository / f"m/1/libtriton_{made.backend}.so").read_bytes() == b"for aarch64"
    # The backend has the operators itself: it reads only whether the net has any.
    assert operators.keys() & made.parameters.keys() == {OPERATORS}


def test_the_hosting_of_each_variant_is_known() -> None:
    known = {name: hosting.device for name, hosting in HOSTING.items()}
    adapted = {each.name: each.device for each in ADAPTED}
    assert known == {each.name: each.device for each in VARIANTS} | adapted


@pytest.mark.parametrize("recorded", ["", "int8", "of a later version"])
def test_the_variant_is_recorded_and_derived_for_models_of_before(repository: Path, recorded: str) -> None:
    put(repository, replace(NET, parameters={**NET.parameters, "variant": recorded}), "cpu")
    assert why_not(repository, "m") == ""


# On GPUs


ROWS = "model.fp16.rows.onnx"


@pytest.fixture
def on_gpu(repository: Path) -> Path:
    """The model with a graph of rows for GPUs."""
    save(repository, ROWS)
    put(repository, replace(NET_GPU, parameters={ROWS_FILE: ROWS}), "gpu")
    return repository


def test_the_steps_become_one_model_with_the_graph_of_rows_on_a_gpu(on_gpu: Path) -> None:
    assert why_not(on_gpu, "m", "gpu") == ""
    one_hop.merge(on_gpu, "m", "/usr/lib/libonnxruntime.so.1", device="gpu")
    made = config(on_gpu, "m/config.pbtxt")
    [group] = made.instance_group
    assert (group.kind, group.count, list(group.gpus)) == (KIND_GPU, one_hop.ON_GPU.instances, [0])
    parameters = {key: value.string_value for key, value in made.parameters.items()}
    assert parameters["model_file"] == f"net/{ROWS}" and ROWS_FILE not in parameters
    assert {ROWS, "model.fp16.onnx"} <= {path.name for path in (on_gpu / "m/1/net").iterdir()}


def test_the_gpu_that_the_configuration_names_is_the_merged_models(on_gpu: Path) -> None:
    edited(on_gpu / "m_net/configs/gpu.pbtxt", "count: 1", "count: 1 gpus: 3")
    one_hop.merge(on_gpu, "m", "/usr/lib/libonnxruntime.so.1", device="gpu")
    assert list(config(on_gpu, "m/config.pbtxt").instance_group[0].gpus) == [3]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "m_net/1" / ROWS).unlink(), "no graph of rows for GPUs"),
        (lambda folder: put(folder, NET_GPU, "gpu"), "no graph of rows for GPUs"),
        (lambda folder: (folder / "m_net/configs/gpu.pbtxt").unlink(), "it was not exported for GPUs"),
        (lambda folder: edited(folder / "m_net/configs/gpu.pbtxt", "count: 1", "count: 2"), "own instance_group"),
        (lambda folder: edited(folder / "m_net/configs/gpu.pbtxt", "count: 1", "gpus: [0, 1]"), "own instance_group"),
        (
            lambda folder: put(folder, replace(NET_GPU, parameters={ROWS_FILE: ROWS, "shared_net": "0"}), "gpu"),
            "it was not exported for GPUs",
        ),
    ],
)
def test_encoders_that_do_not_qualify_on_a_gpu_keep_their_steps(
    on_gpu: Path, change: Callable[[Path], object], reason: str
) -> None:
    change(on_gpu)
    assert reason in why_not(on_gpu, "m", "gpu")
    assert why_not(on_gpu, "m") == ""


def test_an_encoder_keeps_its_steps_without_onnxruntime_for_gpus(on_gpu: Path, tmp_path: Path) -> None:
    capi = tmp_path / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    library = capi / "libonnxruntime.so.1.31.1"
    library.touch()
    assert runtime_library(capi.parent) == library and runtime_library(capi.parent, "gpu") is None
    (capi / CUDA_PROVIDER).touch()
    assert runtime_library(capi.parent, "gpu") == library
    if not HAS_CUDA_PROVIDER:
        kept = prepare_encoders(on_gpu, None, native=True, device="gpu")
        assert kept == {"m": "onnxruntime-gpu was not found"}


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
