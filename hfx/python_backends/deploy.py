"""The files of this package that a model folder or a backend folder of Triton needs.

The files keep their places, flat or in their package, so they import each other there as they do here.
"""

from __future__ import annotations

from pathlib import Path

Files = dict[str, Path]

HERE = Path(__file__).resolve().parent

_ENCODERS = (
    *("checks", "encoding", "errors", "inputs", "label_net", "labelled", "long_texts", "prompts", "roles", "rows"),
    *("settings", "templates", "tokenizer_file", "windows"),
)

_LARGE = ("large_loads", "large_requests")

_UNSERVED = HERE / "engine" / "reference.py"  # for readers and tests

# The packages of a generator's engine, and the modules that they need from outside.
_GENERATOR = ("engine", "generation", "serving")
_GENERATOR_SHARED = ("checks", "errors", "exponential", "inputs", "spaces", "tasks/__init__", "tokenizer_file")

# The modules of the package `serving` that a relay, or a model with large requests, needs. The engine needs all.
_RELAY = ("__init__", "cancellation_poller", "ipc", "traces", "triton_channel")
_CHANNEL = ("__init__", "ipc", "triton_channel")

BACKEND_PACKAGE = "hfx_backend"


def tokenize_files() -> Files:
    """Return the files of NAME_tokenize/1: target name -> source.

    The exporter writes tokenizer.json and settings.json.
    """
    modules = _flat(("admission", *_LARGE, "tasks/__init__", *_ENCODERS))
    return {"model.py": HERE / "tokenize.py", **modules, **_inside("serving", _CHANNEL)}


def postprocess_files() -> Files:
    """Return the files of NAME_postprocess/1: target name -> source."""
    return {
        "model.py": HERE / "postprocess.py",
        **_flat(("errors", "exponential", "spaces", "tokenizer_file")),
        **_packages(("tasks",)),
    }


def stream_files() -> Files:
    """Return the files of NAME_stream/1: target name (with folders) -> source. The exporter writes the model itself."""
    return {"model.py": HERE / "generate.py", **_packages(_GENERATOR), **_flat(_GENERATOR_SHARED)}


def relay_files() -> Files:
    """Return the files of NAME/1 of a generator: target name (with folders) -> source."""
    return {"model.py": HERE / "relay.py", **_flat(("errors", "inputs")), **_inside("serving", _RELAY)}


def onnxruntime_files() -> Files:
    """Return the files of BACKENDS/onnxruntime: target name (with folders) -> source."""
    modules = {**_flat(("__init__", "errors", *_LARGE)), **_inside("serving", _CHANNEL)}
    package = {**modules, **_packages(("onnxruntime",))}
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
        if path != _UNSERVED
    }
