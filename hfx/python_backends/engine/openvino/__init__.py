"""What runs a model in OpenVINO; here the package itself, and whether it can serve a model."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from ..spec import EngineSpec, version_numbers


def import_openvino() -> Any:
    """The module. Raises ImportError."""
    # Its import starts a counter in the home directory and a client of Google Analytics; without the package it
    # takes an empty one of its own.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


@cache
def core() -> Any:
    """The process's one core, which is never freed. Raises ImportError.

    The CPU plugin gives the thread that loads it a stack for signal handlers and unmaps it with its last user, from
    whatever thread that is: the next signal ends the process (OpenVINO 2026.4).
    """
    return import_openvino().Core()


def refusal(spec: EngineSpec) -> tuple[str, str] | None:
    """Why OpenVINO can't serve the model here, and what to do; None where it can."""
    if spec.openvino is None:
        return "the model has no files for OpenVINO", "Export it again with openvino installed"
    wanted = spec.openvino.minimum
    fix = f"pip install 'openvino>={wanted}'"
    try:
        installed: str = import_openvino().__version__
    except ImportError as error:
        return f"openvino can't be imported ({error})", fix
    if version_numbers(installed) < version_numbers(wanted):
        return f"openvino {installed} is installed; the model needs {wanted} or later", fix
    return None
