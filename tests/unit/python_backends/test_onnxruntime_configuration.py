"""The session that the Python backend makes of a configuration, and refused configurations."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx import native
from hfx.exporter.variants.int8 import copy_operators
from hfx.native.build import LIBRARY
from hfx.python_backends.onnxruntime import sessions
from hfx.python_backends.onnxruntime.config import (
    ConfigError,
    model_file,
    operators_of,
    providers,
    seconds,
    session_options,
)
from hfx.python_backends.onnxruntime.ragged import Layout, check
from hfx.python_backends.onnxruntime.sessions import open_session, operator_library
from tests.rigs.machine.processors import HAS_NATIVE
from tests.rigs.servers.onnxruntime_rig import (
    FP32,
    INT32,
    accelerated,
    batch_input,
    doubling,
    doubling_config,
    ragged_config,
    string_parameters,
    write_ragged,
)


@pytest.fixture
def ragged_file(tmp_path: Path) -> Path:
    return write_ragged(tmp_path)


def test_times_are_numbers_of_seconds_from_0_on() -> None:
    assert [seconds({"parameters": string_parameters(wait=text)}, "wait", 3.0) for text in ("0", "2.5")] == [0.0, 2.5]
    assert seconds({}, "wait", 3.0) == 3.0
    for text in ("", "soon", "-1", "nan", "inf", "1e999"):
        with pytest.raises(ConfigError, match="parameter wait is"):
            seconds({"parameters": string_parameters(wait=text)}, "wait", 3.0)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"batch_input": []}, "takes item_shape, which the configuration does not name"),
        ({"output": [{"name": "mean", "data_type": INT32}]}, "the graph has no output mean; it has total, doubled"),
        ({"output": [{"name": "total", "data_type": FP32}]}, "output total is TYPE_FP32 .* int32 in the graph"),
        ({"input": [{"name": "text", "data_type": INT32}]}, "the graph has no input text"),
        ({"batch_output": [{"target_name": ["total"]}]}, "batch_output is not supported"),
        ({"batch_input": [batch_input("BATCH_WEATHER")]}, "kind BATCH_WEATHER is unknown"),
        ({"batch_input": [batch_input("BATCH_ITEM_SHAPE") | {"source_input": ["a", "b"]}]}, "2 source inputs"),
        ({"batch_input": [batch_input("BATCH_ITEM_SHAPE", data_type="TYPE_INT64")]}, "TYPE_INT64"),
    ],
)
def test_a_configuration_that_does_not_fit_the_graph_is_refused(
    ragged_file: Path, changed: dict[str, Any], reason: str
) -> None:
    config = ragged_config(**changed)
    with pytest.raises(ConfigError, match=reason):
        check(Layout.read(config), config, open_session({}, ragged_file))


def test_a_ragged_input_must_be_flat_in_the_graph(tmp_path: Path) -> None:
    config = doubling_config(8, allow_ragged_batch=True)
    with pytest.raises(ConfigError, match="one dimension"):
        check(Layout.read(config), config, open_session({}, doubling(tmp_path, "b", "n")))


def test_session_options_come_from_the_configuration() -> None:
    import onnxruntime

    given = string_parameters(
        intra_op_thread_count="2", inter_op_thread_count="3", execution_mode="1", enable_mem_arena="0",
        enable_mem_pattern="0", session__intra_op__allow_spinning="0",
    )  # fmt: skip
    options = session_options({"parameters": given, "optimization": {"graph": {"level": 1}}}, onnxruntime)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena and not options.enable_mem_pattern
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    bounded = string_parameters(session__intra_op__allow_spinning="0", session__intra_op__spin_duration_us="20")
    options = session_options({"parameters": bounded}, onnxruntime)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "20"
    for value in ("-5", "abc", ""):
        with pytest.raises(ConfigError, match="spin_duration_us"):
            session_options({"parameters": string_parameters(session__intra_op__spin_duration_us=value)}, onnxruntime)
    plain = session_options({}, onnxruntime)
    assert plain.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


def test_a_gpu_instance_gets_the_cuda_and_tensorrt_providers() -> None:
    listed = [
        {"name": "tensorrt", "parameters": {"precision_mode": "FP16", "max_workspace_size_bytes": "9"}},
        {"name": "cuda", "parameters": {"use_ep_level_unified_stream": "1"}},
    ]
    config = {
        "optimization": {"execution_accelerators": {"gpu_execution_accelerator": listed}},
        "parameters": string_parameters(cudnn_conv_algo_search="1", gpu_mem_limit="77"),
    }
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    assert providers(config, "GPU", 1, available) == [
        ("TensorrtExecutionProvider", {"device_id": 1, "trt_max_workspace_size": "9", "trt_fp16_enable": "1"}),
        (
            "CUDAExecutionProvider",
            {
                "device_id": 1,
                "cudnn_conv_algo_search": "HEURISTIC",
                "gpu_mem_limit": "77",
                "use_ep_level_unified_stream": "1",
            },
        ),
        ("CPUExecutionProvider", {}),
    ]


@pytest.mark.parametrize(
    ("config", "kind", "reason"),
    [
        ({}, "GPU", r"no CUDAExecutionProvider .* install onnxruntime-gpu"),  # and never falls to the CPU
        ({"optimization": accelerated("gpu", "abacus")}, "GPU", "abacus"),
        ({}, "MODEL", "kind MODEL"),
    ],
)
def test_an_instance_kind_without_its_provider_is_refused(config: dict[str, Any], kind: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        providers(config, kind, 0, ["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"parameters": string_parameters(intra_op_thread_count="many")}, "intra_op_thread_count is 'many'"),
        ({"optimization": {"graph": {"level": 9}}}, "level is 9"),
        ({"optimization": accelerated("cpu", "abacus")}, "abacus"),
        ({"optimization": accelerated("cpu", "openvino")}, "no longer runs models on OpenVINO: export the model again"),
    ],
)
def test_an_unsupported_session_configuration_is_refused(ragged_file: Path, config: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_session(config, ragged_file)


@pytest.fixture
def operators(tmp_path: Path) -> dict[str, Any]:
    """The parameters of a model with the library of native operators beside its file."""
    return {"parameters": string_parameters(**copy_operators(tmp_path, skips_padding=True))}


def test_the_library_of_operators_is_loaded_where_it_runs(operators: Any, ragged_file: Path) -> None:
    if HAS_NATIVE:
        assert operator_library(operators, ragged_file.parent) == ragged_file.parent / LIBRARY
        assert open_session(operators, ragged_file).skips_padding
        del operators["parameters"]["skips_padding"]
        assert not open_session(operators, ragged_file).skips_padding


OLDER = {"operators": "x86.so", "operators_sha256": "1"}  # an export for x86-64 alone
BOTH = OLDER | {"operators_aarch64": "arm.so", "operators_sha256_aarch64": "2"}


@pytest.mark.parametrize(
    ("machine", "named", "expected"),
    [
        ("x86_64", BOTH, ("x86.so", "1")),
        ("aarch64", BOTH, ("arm.so", "2")),
        ("aarch64", OLDER, ("x86.so", "1")),  # which can't be loaded there, and a log line says so
        ("riscv64", BOTH, ("x86.so", "1")),
        ("aarch64", {}, ("", "")),
    ],
)
def test_a_configuration_names_the_operators_of_each_processor(
    machine: str, named: dict[str, str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert operators_of({"parameters": string_parameters(**named)}) == expected


@pytest.mark.parametrize("damage", [lambda file: file[:1000], lambda file: file + b"0", lambda file: b""])
def test_a_damaged_library_is_refused_before_it_is_loaded(operators: Any, ragged_file: Path, damage: Any) -> None:
    library = ragged_file.parent / LIBRARY
    library.write_bytes(damage(library.read_bytes()))
    with pytest.raises(ConfigError, match="is not the file that was exported"):
        open_session(operators, ragged_file)


@pytest.mark.parametrize("name", ["../libhfx_operators.so", "/libhfx_operators.so", "other.so", "."])
def test_the_library_lies_beside_the_file(operators: Any, ragged_file: Path, name: str) -> None:
    operators["parameters"]["operators"]["string_value"] = name
    with pytest.raises(ConfigError, match="not a file beside the ONNX file"):
        open_session(operators, ragged_file)


@pytest.mark.parametrize("flags", ["flags : fpu avx2 avx512f avx512_vnni", "Features : fp asimd crc32"])
@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_a_library_that_does_not_run_here_leaves_the_graphs_own_operators(
    machine: str, flags: str, ragged_file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ragged_file.parent / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    monkeypatch.setattr(sessions, "CPUINFO", ragged_file.parent / "cpuinfo")
    monkeypatch.setenv("HFX_NATIVE_KERNELS", "none")  # so that the library of this machine has none, either
    library = native.libraries()[machine]
    shutil.copy(library, ragged_file.parent)
    named = {"operators": library.name, "operators_sha256": hashlib.sha256(library.read_bytes()).hexdigest()}
    session = open_session({"parameters": string_parameters(**named, skips_padding="1")}, ragged_file)
    assert not session.skips_padding
    feed = {"ids": np.array([1, 2], np.int32), "item_shape": np.array([[2]], np.int32)}
    assert session.run(feed, ["total"])["total"].tolist() == [[3]]
    [message] = caplog.messages
    assert "the graph's own operators" in message
    assert ("can't be loaded" in message) == (machine != platform.machine())
    with pytest.raises(ConfigError, match="export the model on this machine"):  # those of adapters have no definitions
        open_session({"parameters": string_parameters(**named, shared_net="5e" * 32)}, ragged_file)


def test_a_library_that_can_not_be_loaded_is_refused_where_sums_would_be_wrong(
    ragged_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"a library in a folder that executes nothing"
    (ragged_file.parent / "operators.so").write_bytes(content)
    (ragged_file.parent / "cpuinfo").write_text("processor : 0\nflags : fpu avx2 avx512f\n")
    monkeypatch.setattr(sessions, "CPUINFO", ragged_file.parent / "cpuinfo")
    named = {"operators": "operators.so", "operators_sha256": hashlib.sha256(content).hexdigest()}
    with pytest.raises(ConfigError, match="set TMPDIR to a folder that may hold programs"):
        open_session({"parameters": string_parameters(**named)}, ragged_file)


def test_a_processor_without_kernels_is_reported(operators: Any, ragged_file: Path) -> None:
    script = (
        "from hfx.python_backends.onnxruntime.sessions import open_session\n"
        f"open_session({operators!r}, {str(ragged_file)!r})\n"
    )
    environment = os.environ | {"HFX_NATIVE_KERNELS": "none"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    refusal = native.refusal()
    assert refusal in done.stderr and (done.returncode != 0) != sessions.multiplies_bytes_exactly()


def test_a_missing_file_is_named_and_a_folder_of_its_name_holds_external_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"other\.onnx is not there"):
        open_session({}, model_file({"default_model_filename": "other.onnx"}, tmp_path))
    (tmp_path / "model.onnx").mkdir()
    assert model_file({}, tmp_path) == tmp_path / "model.onnx" / "model.onnx"


def test_the_runtime_leaves_no_trace_in_the_home_directory(ragged_file: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    script = (
        f"from hfx.python_backends.onnxruntime.sessions import open_session\nopen_session({{}}, {str(ragged_file)!r})\n"
    )
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment | {"HOME": str(home)})
    assert list(home.rglob("*")) == []
