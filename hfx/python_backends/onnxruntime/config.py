"""What the backend reads of a model's configuration (config.pbtxt as the JSON object that Triton hands on).

Owns the names of parameters and their meaning, those of NVIDIA's C++ backend; opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Config = Mapping[str, Any]

DTYPES: dict[str, Any] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}


class ConfigError(ValueError):
    """A configuration that can't be served; the text says what to change."""


def parameters(config: Config) -> dict[str, str]:
    """`parameters { key value { string_value } }` as a plain dict."""
    return {key: value["string_value"] for key, value in (config.get("parameters") or {}).items()}


def integer(config: Config, key: str, default: int) -> int:
    """A parameter that is a whole number. Raises ConfigError."""
    text = parameters(config).get(key, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"parameter {key} is {text!r}, not a whole number") from None


def model_file(config: Config, version_folder: Path) -> Path:
    """The ONNX file of a version; a folder of that name holds a model with external data."""
    path = version_folder / (config.get("default_model_filename") or "model.onnx")
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
