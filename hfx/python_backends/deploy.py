"""Which files of this package a model folder or a backend folder of Triton needs.

Files lie there as they lie here, flat or in their package, and import each other as they do here.
"""

from __future__ import annotations

from pathlib import Path

Files = dict[str, Path]

HERE = Path(__file__).resolve().parent

_ENCODERS = ("checks", "encoding", "errors", "inputs", "prompts", "roles", "rows", "settings", "templates", "windows")

# A generator's engine: packages, and what they need beside them.
_GENERATOR = ("engine", "generation", "serving")
_GENERATOR_SHARED = ("checks", "errors", "inputs", "spaces", "tasks/__init__")

# What a relay needs of the package `serving`; the rest is the engine's.
_RELAY = ("__init__", "cancellation_poller", "ipc", "traces", "triton_channel")

BACKEND_PACKAGE = "hfx_backend"


def tokenize_files() -> Files:
    """Target name in NAME_tokenize/1 -> source. tokenizer.json and settings.json are the exporter's."""
    return {"model.py": HERE / "tokenize.py", **_flat(("admission", "tasks/__init__", *_ENCODERS))}


def postprocess_files() -> Files:
    """Target name in NAME_postprocess/1 -> source."""
    return {"model.py": HERE / "postprocess.py", **_flat(("errors", "spaces")), **_packages(("tasks",))}


def stream_files() -> Files:
    """Target name (with folders) in NAME_stream/1 -> source. The model itself is the exporter's."""
    return {"model.py": HERE / "generate.py", **_packages(_GENERATOR), **_flat(_GENERATOR_SHARED)}


def relay_files() -> Files:
    """Target name in NAME/1 of a generator -> source."""
    return {"model.py": HERE / "relay.py", **_flat(("errors", "inputs")), **_inside("serving", _RELAY)}


def onnxruntime_files() -> Files:
    """Target name (with folders) in BACKENDS/onnxruntime -> source."""
    serving = _inside("serving", ("__init__", "triton_channel"))  # what counts open requests
    package = {**_flat(("__init__", "errors")), **serving, **_packages(("onnxruntime",))}
    entry = package.pop("onnxruntime/entry.py")
    return {"model.py": entry, **{f"{BACKEND_PACKAGE}/{target}": source for target, source in package.items()}}


def _flat(modules: tuple[str, ...]) -> Files:
    return {f"{module}.py": HERE / f"{module}.py" for module in modules}


def _inside(package: str, modules: tuple[str, ...]) -> Files:
    return {f"{package}/{module}.py": HERE / package / f"{module}.py" for module in modules}


def _packages(packages: tuple[str, ...]) -> Files:
    return {
        path.relative_to(HERE).as_posix(): path
        for package in packages
        for path in sorted((HERE / package).rglob("*.py"))
    }
