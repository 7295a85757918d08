"""Reads a model's configuration: config.pbtxt, as the JSON object that Triton passes to the backend.

The module makes ONNX Runtime's session options and execution providers from it, and opens nothing. The parameters have
the names and meanings that they have in NVIDIA's C++ backend.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]

# ONNX Runtime's entries: whether threads spin before they sleep, and for how long.
ALLOW_SPINNING, SPIN_DURATION = "session.intra_op.allow_spinning", "session.intra_op.spin_duration_us"
# Parameters: a library of operators for ONNX Runtime beside the ONNX file, and its SHA-256. They are for x86-64; those
# for another processor have its name at their end.
OPERATORS, OPERATORS_SHA256 = "operators", "operators_sha256"
# Parameter: whether that library computes nothing for padding, so that it pays to run rows of many widths together.
SKIPS_PADDING = "skips_padding"
# The accelerator of models of earlier versions, and why they are refused.
OPENVINO, NO_OPENVINO = "openvino", "hfx no longer runs models on OpenVINO: export the model again"
ERRORS = 3  # a level of ONNX Runtime's log
# Parameter: the ONNX file of a model whose default_model_filename is a Python file (hfx/deploy/bundle.py).
MODEL_FILE = "model_file"
# Parameter: the SHA-256 of a net and its weights, without the file ADAPTER_FILE beside it, in hexadecimal digits
# (net_sha256 of hfx/manifest.py). The C++ backend (hfx/native/backend) has one session for all models of a server with
# the same value; hfx/triton/models.py compares the value with the files.
SHARED_NET, ADAPTER_FILE = "shared_net", "adapter.bin"
# Parameter: the value of attention_mask at the tokens of labels. Rows with equally many of them share a run, because a
# product's sums depend on its number of columns.
LABEL_MASK = "label_mask"
# Parameter of configurations for GPUs: the ONNX file of rectangular batches, which the C++ backend runs.
ROWS_FILE = "rows_file"


class ConfigError(ValueError):
    """A configuration that can't be served; the text says what to change."""


def parameters(config: Config) -> dict[str, str]:
    """`parameters { key value { string_value } }` as a plain dict."""
    return {key: value["string_value"] for key, value in (config.get("parameters") or {}).items()}


def operators_for(machine: str) -> tuple[str, str]:
    """Return the parameters OPERATORS and OPERATORS_SHA256 for a processor (as platform.machine() names it)."""
    end = "" if machine == "x86_64" else f"_{machine}"
    return OPERATORS + end, OPERATORS_SHA256 + end


def operators_of(config: Config) -> tuple[str, str]:
    """Return the file and the hash of the operators for this machine, or of those for x86-64; empty if there are none.

    An older export has no others than those for x86-64.
    """
    given, names = parameters(config), operators_for(platform.machine())
    file, digest = names if names[0] in given else (OPERATORS, OPERATORS_SHA256)
    return given.get(file, ""), given.get(digest, "")


def integer(config: Config, key: str, default: int) -> int:
    """Return the parameter `key`, a whole number. Raises ConfigError."""
    text = parameters(config).get(key, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"parameter {key} is {text!r}, not a whole number") from None


def seconds(config: Config, key: str, default: float) -> float:
    """Return the parameter `key`, a time of at least 0 s. Raises ConfigError."""
    text = parameters(config).get(key, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"parameter {key} is {text!r}, not a number of seconds")
    return value


def model_file(config: Config, version_folder: Path) -> Path:
    """Return the ONNX file of a version; a folder in its place holds a model with external data."""
    name = parameters(config).get(MODEL_FILE) or config.get("default_model_filename") or "model.onnx"
    path = version_folder / name
    return path / "model.onnx" if path.is_dir() else path


def accelerators(config: Config, device: str) -> list[tuple[str, dict[str, str]]]:
    """(name, parameters) of optimization.execution_accelerators; `device` is cpu or gpu."""
    listed = (config.get("optimization") or {}).get("execution_accelerators") or {}
    return [
        (each["name"], dict(each.get("parameters") or {})) for each in listed.get(f"{device}_execution_accelerator", [])
    ]


def graph_level(config: Config) -> int:
    """optimization.graph.level: 0 all, -1 basic, 1 extended (as the C++ backend reads it), 2 none."""
    return int(((config.get("optimization") or {}).get("graph") or {}).get("level", 0))


Provider = tuple[str, dict[str, Any]]

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
CPU = "CPUExecutionProvider"

# The C++ backend has levels of its own: 0 enables everything, and 1 less than 0.
GRAPH_LEVELS = {0: "ORT_ENABLE_ALL", -1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

# Model parameters that are options of the CUDA provider, with the words that stand for the numbers.
CUDA_OPTIONS: dict[str, dict[str, str]] = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "gpu_mem_limit": {},
    "do_copy_in_default_stream": {},
}

# Keys of the tensorrt accelerator whose names differ from the provider's.
TENSORRT_OPTIONS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
TENSORRT_PRECISIONS = {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "INT8": {"trt_int8_enable": "1"}}


def session_options(config: Config, onnxruntime: Any) -> Any:
    """Return SessionOptions: graph level, threads, execution mode, memory, and every parameter "session.*".

    A configuration with SPIN_DURATION also forbids spinning, for backends whose onnxruntime does not know SPIN_DURATION
    and would spin for milliseconds. The onnxruntime of this backend knows it, so spinning is allowed here. Raises
    ConfigError for a value that can't be used.
    """
    level = graph_level(config)
    if level not in GRAPH_LEVELS:
        raise ConfigError(f"optimization.graph.level is {level}, not one of {sorted(GRAPH_LEVELS)}")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, GRAPH_LEVELS[level])
    options.intra_op_num_threads = integer(config, "intra_op_thread_count", 0)
    options.inter_op_num_threads = integer(config, "inter_op_thread_count", 0)
    options.enable_cpu_mem_arena = integer(config, "enable_mem_arena", 1) != 0
    options.enable_mem_pattern = integer(config, "enable_mem_pattern", 1) != 0
    if SHARED_NET in parameters(config):
        options.log_severity_level = ERRORS  # it warns of defaults that a caller may replace
    parallel = integer(config, "execution_mode", 0) == 1
    modes = onnxruntime.ExecutionMode
    options.execution_mode = modes.ORT_PARALLEL if parallel else modes.ORT_SEQUENTIAL
    entries = {key: value for key, value in parameters(config).items() if key.startswith("session.")}
    if SPIN_DURATION in entries:
        if integer(config, SPIN_DURATION, 0) < 0:  # ONNX Runtime would read it as no limit
            raise ConfigError(f"{SPIN_DURATION} is {entries[SPIN_DURATION]}: use microseconds, or 0 not to spin")
        entries[ALLOW_SPINNING] = "1"
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return options


def providers(config: Config, kind: str, device_id: int, available: Sequence[str]) -> list[Provider]:
    """Return the providers with their options, best first. Raises ConfigError if one is not in `available`."""
    if kind not in ("CPU", "GPU"):
        raise ConfigError(f"instance_group kind {kind} can't be served: use KIND_CPU or KIND_GPU")
    for name, _ in accelerators(config, "cpu") if kind == "CPU" else ():
        raise ConfigError(NO_OPENVINO if name == OPENVINO else f"cpu_execution_accelerator {name!r} can't be used")
    chosen = _gpu_providers(config, device_id) if kind == "GPU" else []
    missing = [name for name, _ in chosen if name not in available]
    if missing:
        raise ConfigError(
            f"the instance group asks for a GPU, but this onnxruntime has no {', '.join(missing)} (it has "
            f"{', '.join(available)}): install onnxruntime-gpu, or serve the CPU configuration (KIND_CPU)"
        )
    return [*chosen, (CPU, {})]


def _gpu_providers(config: Config, device_id: int) -> list[Provider]:
    given = parameters(config)
    cuda: dict[str, Any] = {
        key: words.get(given[key], given[key]) for key, words in CUDA_OPTIONS.items() if key in given
    }
    tensorrt: list[Provider] = []
    for name, options in accelerators(config, "gpu"):
        if name == "cuda":
            cuda.update(options)
        elif name == "tensorrt":
            tensorrt.append((TENSORRT, {"device_id": device_id, **_tensorrt_options(options)}))
        else:
            raise ConfigError(f"gpu_execution_accelerator {name!r} is unknown; cuda and tensorrt can be used")
    return [*tensorrt, (CUDA, {"device_id": device_id, **cuda})]


def _tensorrt_options(options: dict[str, str]) -> dict[str, str]:
    precision = options.get("precision_mode", "FP32")
    if precision not in TENSORRT_PRECISIONS:
        raise ConfigError(f"tensorrt's precision_mode is {precision!r}, not one of {', '.join(TENSORRT_PRECISIONS)}")
    renamed = {TENSORRT_OPTIONS.get(key, key): value for key, value in options.items() if key != "precision_mode"}
    return renamed | TENSORRT_PRECISIONS[precision]
