"""ONNX Runtime sessions of a generation model, and whether this machine can run it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ModelDamaged, ProcessorUnsuited, ProviderMissing, RuntimeTooOld
from .memory import trim_heap
from .spec import EngineSpec

# The name a caller uses -> ONNX Runtime's execution provider.
PROVIDERS = {"CPU": "CPUExecutionProvider", "CUDA": "CUDAExecutionProvider"}

CPUINFO = Path("/proc/cpuinfo")
SPIN_MICROSECONDS = 20


@dataclass(frozen=True)
class SessionSettings:
    """How a model's sessions run: `threads` of each operator, 0 for one a core.

    Threads that wait for the next operator spin for `spin_microseconds` before they sleep: 20 gain 10 to 30 % on cores
    of their own and cost nothing on shared ones; 100 gain some more, and lose as much where another program runs.
    `runtime` serves on CPU; None: the one that engine.json names, if it is there. `operators`: a library of operators
    for ONNX Runtime, without which the graphs' own definitions of them run.
    """

    threads: int = 0
    provider: str = "CPU"
    spin_microseconds: int = SPIN_MICROSECONDS
    runtime: str | None = None
    operators: Path | None = None


def check_machine(spec: EngineSpec, settings: SessionSettings, cpuinfo: Path = CPUINFO) -> None:
    """Refuse a model that can't run right here. Raises RuntimeTooOld, ProcessorUnsuited or ProviderMissing."""
    onnxruntime = _onnxruntime()
    if version_numbers(onnxruntime.__version__) < version_numbers(spec.minimum_onnxruntime):
        raise RuntimeTooOld(
            f"onnxruntime {onnxruntime.__version__} is installed; the model needs {spec.minimum_onnxruntime} or later",
            f"pip install 'onnxruntime>={spec.minimum_onnxruntime}'",
        )
    if settings.provider not in PROVIDERS:
        raise ProviderMissing(f"provider {settings.provider!r} is unknown", f"Choose one of {', '.join(PROVIDERS)}")
    available = onnxruntime.get_available_providers()
    if PROVIDERS[settings.provider] not in available:
        raise ProviderMissing(
            f"this onnxruntime has no {PROVIDERS[settings.provider]} (it has {', '.join(available)})",
            "Install onnxruntime-gpu in the place of onnxruntime, or use the provider CPU",
        )
    if spec.needs_vnni and settings.provider == "CPU" and not multiplies_bytes_exactly(cpuinfo):
        raise ProcessorUnsuited(
            "this processor has no VNNI instructions, without which products of 8-bit weights overflow",
            "Export the model on such a processor, which gives it 7-bit weights, or in fp32",
        )


def multiplies_bytes_exactly(cpuinfo: Path = CPUINFO) -> bool:
    """Whether u8 x s8 products are added without overflow: true but for x86 processors without VNNI."""
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), None)
    return flags is None or bool({"avx512_vnni", "avx_vnni"} & set(flags))


def open_session(model: Path | bytes, settings: SessionSettings) -> Any:
    """An onnxruntime.InferenceSession of a file, or of a serialized graph of the engine's own.

    Raises ModelDamaged, or ProviderMissing where the provider could not start.
    """
    onnxruntime = _onnxruntime()
    wanted = PROVIDERS[settings.provider]
    options = session_options(settings, onnxruntime)
    providers = list(dict.fromkeys((wanted, PROVIDERS["CPU"])))
    try:
        source = model if isinstance(model, bytes) else str(model)
        session = onnxruntime.InferenceSession(source, options, providers=providers)
    except Exception as error:  # its exceptions have no common class below Exception
        name = "a graph of the engine's own" if isinstance(model, bytes) else model
        raise ModelDamaged(f"onnxruntime can't load {name}: {error}") from error
    # What the weights took while the functions of native operators unpacked them: of the decoder of Flan-T5-base 624 MB
    # become 212.
    trim_heap()
    # A provider whose libraries can't be loaded is dropped by ONNX Runtime with no more than a log line.
    if wanted not in session.get_providers():
        raise ProviderMissing(
            f"onnxruntime could not start {wanted}: see its log", "Check the GPU's driver and libraries"
        )
    return session


def session_options(settings: SessionSettings, onnxruntime: Any) -> Any:
    """SessionOptions: one operator at a time, all threads inside it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    if settings.operators:
        options.register_custom_ops_library(str(settings.operators))
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(settings.spin_microseconds > 0)))
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(settings.spin_microseconds))
    return options


def _onnxruntime() -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    return onnxruntime


def version_numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
