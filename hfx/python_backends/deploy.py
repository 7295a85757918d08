"""Which files of this package a model folder or a backend folder of Triton needs.

Files lie there as they lie here, flat or in their package, and import each other as they do here.
"""

from __future__ import annotations

from pathlib import Path

from .postprocess.tasks import MODULES

Files = dict[str, Path]

HERE = Path(__file__).resolve().parent

_ENCODERS = ("encoding", "hypotheses", "inputs", "pairs", "parameters", "rows", "settings", "texts", "windows")

# What a task's postprocessing needs beside its own module.
_SHARED = ("inputs", "tasks")
_EXTRA = dict.fromkeys(("token_classification", "text_ranking"), ("text_classification",))

# A generator's engine: packages, and what they need beside them.
_GENERATOR = ("engine", "generation", "serving")
_GENERATOR_SHARED = ("inputs", "parameters")

# What a relay needs of the package `serving`; the rest is the engine's.
_RELAY = ("__init__", "cancellation_poller", "ipc", "triton_channel")

BACKEND_PACKAGE = "hfx_backend"


def tokenize_files() -> Files:
    """Target name in NAME_tokenize/1 -> source. tokenizer.json and settings.json are the exporter's."""
    return {"model.py": HERE / "tokenize.py", **_flat(HERE, ("admission", *_ENCODERS))}


def postprocess_files(task: str) -> Files:
    """Target name in NAME_postprocess/1 -> source. Raises KeyError for a task without a postprocessing step."""
    module = MODULES[task]
    folder = HERE / "postprocess"
    return {"model.py": folder / "model.py", **_flat(folder, (*_SHARED, module, *_EXTRA.get(module, ())))}


def stream_files() -> Files:
    """Target name (with folders) in NAME_stream/1 -> source. The model itself is the exporter's."""
    return {"model.py": HERE / "generate.py", **_packages(_GENERATOR), **_flat(HERE, _GENERATOR_SHARED)}


def relay_files() -> Files:
    """Target name in NAME/1 of a generator -> source."""
    return {
        "model.py": HERE / "relay.py",
        **_flat(HERE, ("inputs",)),
        **{f"serving/{module}.py": HERE / "serving" / f"{module}.py" for module in _RELAY},
    }


def onnxruntime_files() -> Files:
    """Target name (with folders) in BACKENDS/onnxruntime -> source."""
    entry, adapter = "onnxruntime/entry.py", "postprocess/model.py"
    package = {
        f"{BACKEND_PACKAGE}/{target}": source
        for target, source in {**_flat(HERE, ("__init__",)), **_packages(("onnxruntime", "postprocess"))}.items()
        if target not in (entry, adapter)
    }
    return {"model.py": HERE / entry, **package}


def _flat(folder: Path, modules: tuple[str, ...]) -> Files:
    return {f"{module}.py": folder / f"{module}.py" for module in modules}


def _packages(packages: tuple[str, ...]) -> Files:
    return {
        path.relative_to(HERE).as_posix(): path
        for package in packages
        for path in sorted((HERE / package).rglob("*.py"))
    }
