"""Triton's log: the advice for models that do not load, and the end of a stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.triton.log import SENT_SECONDS, ServerLog, end_server, load_error
from tests.rigs.machine.waiting import wait_until

FAILED = "E1124 20:00:00 1 model_lifecycle.cc:1] \"failed to load 'net' version 1: Invalid argument: {reason}\"\n"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("instance group net_0 of model net has kind KIND_GPU but no GPUs are available", "--device cpu"),
        ("instance group net_0 of model net has kind KIND_GPU but server does not support GPUs", "--device cpu"),
        ("unable to find backend library for backend 'x', try specifying runtime", "Install the backend"),
        ("Unable to initialize shared memory key 'k' to requested size", "--shm-size"),
        ("something else", "Export the model again"),
    ],
)
def test_a_model_that_does_not_load_comes_with_what_helps(tmp_path: Path, reason: str, advice: str) -> None:
    error = load_error(written_log(tmp_path, FAILED.format(reason=reason)), {}, None)
    assert f"net: Invalid argument: {reason}" in error.message
    assert advice in error.fix and ("Export" in error.fix) == advice.startswith("Export")


# Recorded of ONNX Runtime 1.31 and Triton 2.51, or as they are in reports about ONNX Runtime and Docker.
CUDA_CALL = (
    "RuntimeError: /onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:122 void onnxruntime::CudaCall("
    "ERRTYPE, const char*, const char*, SUCCTYPE, const char*, const char*, int) [with ERRTYPE = cudaError] "
    "CUDA failure {} ; GPU=-1 ; hostname=h ; file=/onnxruntime_src/onnxruntime/core/providers/cuda/"
    "cuda_execution_provider.cc ; line=336 ; expr=cudaSetDevice(info_.device_id);"
)
NO_DRIVER = (
    'W1124 1 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, pinned memory pool will not be '
    'available: CUDA driver version is insufficient for CUDA runtime version"\n'
)
NOT_STARTED = "ConfigError: onnxruntime 1.31.1 could not start CUDAExecutionProvider: see the log above"
NO_LIBRARY = (
    "\x1b[1;31m2026-11-24 20:00:00.1 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] "
    "/onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:2043 onnxruntime::Provider& "
    "onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library /usr/lib/python3/"
    "onnxruntime/capi/libonnxruntime_providers_cuda.so with error: {}: cannot open shared object file: No such file or "
    "directory\n\x1b[m\n"
)
NO_NUMBER = (
    "ConfigError: onnxruntime 1.31.1 could not start CUDAExecutionProvider: /onnxruntime_src/onnxruntime/core/"
    "providers/cuda/cuda_execution_provider_info.cc:63 [ONNXRuntimeError] : 1 : FAIL : provider_options_utils.h:187 "
    'Parse Failed to parse provider option \\"device_id\\": cuda_execution_provider_info.cc:71 operator() Invalid '
    "device ID: 99, must be between 0 (inclusive) and 1 (exclusive)."
)
NO_GPUS = "instance group net_0 of model net has kind KIND_GPU but no GPUs are available"
FULL = "Non-zero status code returned while running MatMul node. Status Message: /onnxruntime_src/onnxruntime/core/"
NOT_THERE = "instance group net_0 of model net specifies invalid or unsupported gpu id 7. GPUs with at least the"


@pytest.mark.parametrize(
    ("before", "reason", "cause", "advice"),
    [
        ("", CUDA_CALL.format("35: CUDA driver version is insufficient for CUDA runtime version"), "too old", "580"),
        (NO_DRIVER, NO_GPUS, "driver of the GPU is missing", "580"),
        ("", CUDA_CALL.format("100: no CUDA-capable device is detected"), "CUDA finds no GPU", "CUDA_VISIBLE_DEVICES"),
        ("", CUDA_CALL.format("101: invalid device ordinal"), "no GPU with the configured number", "configs/gpu.pbtxt"),
        (
            "",
            f"{NOT_THERE} required CUDA compute compatibility of 6.0 are: 0",
            "no GPU with the configured",
            "gpu.pbtxt",
        ),
        ("", CUDA_CALL.format("2: out of memory"), "too little free memory", "--models"),
        (
            "",
            f"RuntimeException: {FULL}framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal("
            "size_t) Failed to allocate memory for requested buffer of size 8388608000 for CUDA",
            "too little free memory",
            "--slots",
        ),
        (
            "",
            "EngineError: cuMemAlloc_v2 failed with CUDA's error 2. Look at the GPU's log",
            "too little free",
            "--slots",
        ),
        ("", "the GPU 7 can't be used (CUDA's error 101: invalid device ordinal): mend it", "no GPU with", "gpu.pbtxt"),
        ("", "ProviderMissing: CUDA's driver can't be loaded (libcuda.so.1: cannot open)", "driver of the GPU", "580"),
        (NO_LIBRARY.format("libcudnn.so.9"), NOT_STARTED, "the library libcudnn.so.9", "LD_LIBRARY_PATH"),
        (NO_LIBRARY.format("libcublasLt.so.13"), NOT_STARTED, "the library libcublasLt.so.13", "cuDNN 9"),
        (
            "",
            "ConfigError: the instance group asks for a GPU, but this onnxruntime has no CUDAExecutionProvider (it has "
            "AzureExecutionProvider, CPUExecutionProvider): install onnxruntime-gpu",
            "is the one for CPUs",
            "onnxruntime-gpu",
        ),
        ("", CUDA_CALL.format("209: no kernel image is available for execution on the device"), "architecture", "GPU"),
    ],
)
def test_a_gpu_that_cant_be_used_comes_with_the_cause_in_the_first_line(
    tmp_path: Path, before: str, reason: str, cause: str, advice: str
) -> None:
    error = load_error(written_log(tmp_path, before + FAILED.format(reason=reason)), {}, None)
    first, _, rest = error.message.partition("\n")
    assert first.startswith("Triton can't load net: ") and cause in first and reason.replace('\\"', '"') in rest
    assert advice in error.fix and "or serve with --device cpu." in error.fix
    assert error.exit_code == 5


def test_triton_s_line_about_a_missing_driver_is_no_cause_of_other_failures(tmp_path: Path) -> None:
    error = load_error(written_log(tmp_path, NO_DRIVER + FAILED.format(reason="no tokenizer")), {}, None)
    assert error.message.startswith("Triton can't load net.\n") and "Export" in error.fix
    error = load_error(written_log(tmp_path, NO_DRIVER), {}, 1)
    assert error.message.startswith("Triton did not start (exit code 1)") and "driver" not in error.fix


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('could not select device driver "" with capabilities: [[gpu]].', "Docker can't give GPUs to containers"),
        (
            "failed to create task for container: nvidia-container-cli: requirement error: unsatisfied condition: "
            "cuda>=13.0, please update your driver to a newer version, or use an earlier cuda container: unknown.",
            "too old for this CUDA",
        ),
    ],
)
def test_a_container_that_gets_no_gpu_comes_with_the_cause(tmp_path: Path, text: str, cause: str) -> None:
    error = load_error(written_log(tmp_path, f"docker: Error response from daemon: {text}\n"), {}, 125)
    assert cause in error.message.partition("\n")[0] and "--device cpu" in error.fix


def written_log(folder: Path, text: str) -> ServerLog:
    path = folder / "triton.log"
    path.write_text("")
    log = ServerLog(path)
    path.write_text(text)
    log.read()
    return log


def test_each_loaded_model_is_counted_among_all(tmp_path: Path) -> None:
    path = tmp_path / "triton.log"
    path.touch()
    log, lines = ServerLog(path, 3), list[str]()
    for names in (["net", "tokenize"], [], ["whole"]):
        with path.open("a") as written:
            written.writelines(f"I1124 1 model_lifecycle.cc:1] \"successfully loaded '{name}'\"\n" for name in names)
        log.read()
        lines += log.progress()
    assert lines == ["loaded net (1 of 3)", "loaded tokenize (2 of 3)", "loaded whole (3 of 3)"]


# Of a server of 26.07 with an open gRPC stream: at SIGTERM it says so once a second, until its exit timeout.
HELD = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print('I1124 main.cc:1] "Timeout 30: Found 1 gRPC service connections '
                                               'and inference handlers"', flush=True))
print("ready", flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], ServerLog]]:
    path = tmp_path / "triton.log"
    path.touch()
    log = ServerLog(path)
    with path.open("ab") as output:
        running = subprocess.Popen([sys.executable, "-c", HELD], stdout=output, start_new_session=True)
    wait_until(lambda: "ready" in path.read_text())
    yield running, log
    running.kill()
    running.wait()


def test_an_open_stream_does_not_hold_a_stop_once_all_requests_are_answered(
    held: tuple[subprocess.Popen[bytes], ServerLog],
) -> None:
    running, log = held
    asked: list[tuple[bool, float]] = []

    def all_answered(by_triton: bool) -> bool:  # one request has run for a second, another one has just arrived
        asked.append((by_triton, time.monotonic()))
        return not 0.2 < asked[-1][1] - asked[0][1] < 1.0

    assert end_server(running, log, 60.0, all_answered)
    assert running.returncode == -signal.SIGKILL
    assert {by_triton for by_triton, _ in asked} == {False}
    assert asked[-1][1] - asked[0][1] >= 1.0 + SENT_SECONDS


def test_a_server_that_has_not_answered_all_is_waited_for(held: tuple[subprocess.Popen[bytes], ServerLog]) -> None:
    assert not end_server(*held, 1.0, lambda by_triton: False)
