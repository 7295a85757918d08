"""Merging the steps of an encoder into one model in C++, which takes texts and returns answers (hfx/native/backend).

A published encoder is an ensemble of Python steps, which runs on every device. On CPUs, its members become one model
with the same name, tensors and parameters. This is done in a server's own copy of the models, or in a bundle. The
merge requires that the export has proven a compiled tokenizer, and that nothing is configured that only the Python
steps can do. The Python processes of the tokenizer, the net and the last step are no longer needed
(docs/benchmarks-encoder.md).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from hfx.names import COMPILED_TOKENIZER, MANIFEST_FILE, NET_SUFFIX, POSTPROCESS_SUFFIX, TOKENIZE_SUFFIX
from hfx.native.build import LIBRARY
from hfx.python_backends.onnxruntime.config import MODEL_FILE, OPERATORS_SHA256, SHARED_NET
from hfx.repository.catalog import model_folders
from hfx.repository.config_pbtxt import CONFIG, config_path, render_message
from hfx.triton.installation import ONNXRUNTIME
from hfx.triton.models import KIND_CPU, read_config

Steps = Literal["native", "python"]
NET = "net"  # in the merged model's version folder: the folder with the contents of NAME_net/1
INSTANCES = 2  # one instance runs the net, while the other takes requests


def runtime_library(package: Path) -> Path | None:
    """Return the library of ONNX Runtime in its Python `package`; None if it is built into the module."""
    return next(iter(sorted((package / "capi").glob("libonnxruntime.so.*"))), None)


def prepare_encoders(repository: Path, backend: str | None, native: bool, served: Path | None = None) -> dict[str, str]:
    """Convert each encoder in `repository` to the model or models that are served on this machine.

    With `native`, an encoder becomes one model if possible. The nets of other encoders run in `backend`, which is hfx's
    onnxruntime backend in Python, if it is given. `served` is the repository of a running server that the models are
    added to. Returns the reasons, by name, why encoders keep their steps in spite of `native`.
    """
    kept = dict[str, str]()
    spec = importlib.util.find_spec(ONNXRUNTIME) if native else None
    runtime = runtime_library(Path(spec.origin).parent) if spec and spec.origin else None
    for folder in model_folders(repository):
        net = repository / (folder.name + NET_SUFFIX)
        if not (net.is_dir() and (folder / MANIFEST_FILE).is_file()):
            continue
        reason = why_not(repository, folder.name) if runtime else f"the library of {ONNXRUNTIME} was not found"
        if not reason:
            merge(repository, folder.name, str(runtime), served)
            continue
        if native:
            kept[folder.name] = reason
        if backend not in (None, ONNXRUNTIME):
            _use_backend(net, str(backend))
    return kept


def _use_backend(net: Path, backend: str) -> None:
    for path in (net / CONFIG, *net.glob("configs/*.pbtxt")):
        config = read_config(path)
        if config.backend == ONNXRUNTIME:
            config.backend = backend
            _write(path, config, "hfx serve, for its own copy")


def why_not(repository: Path, name: str) -> str:
    """Return the reason why the steps of the model NAME can't be merged into one model; empty if they can."""
    tokenize, net, last = (repository / (name + end) for end in (TOKENIZE_SUFFIX, NET_SUFFIX, POSTPROCESS_SUFFIX))
    if not ((repository / name / MANIFEST_FILE).is_file() and net.is_dir() and tokenize.is_dir()):
        return "it is not an encoder of hfx"
    if not (tokenize / "1" / COMPILED_TOKENIZER).is_file():
        return "the export has no compiled tokenizer for it"
    config = read_config(config_path(net, "cpu"))
    if config.backend != ONNXRUNTIME or config.optimization.execution_accelerators.cpu_execution_accelerator:
        return "its net does not run in ONNX Runtime"
    steps = (tokenize, net, *([last] if last.is_dir() else []))
    return next((reason for folder in steps if (reason := _needs_python(folder))), "")


def _needs_python(folder: Path) -> str:
    """Return the setting of a step that needs Triton's own queue or instances; empty if there is none."""
    config = read_config(config_path(folder, "cpu"))
    if any(group.kind != KIND_CPU or group.count > 1 for group in config.instance_group):
        return f"{folder.name} has its own instance_group"
    batching = config.dynamic_batching
    chosen = {field.name for field, _ in batching.ListFields()} - {"default_queue_policy"}
    if chosen or batching.default_queue_policy.ByteSize():
        return f"{folder.name} has its own dynamic_batching"
    return ""


def merge(repository: Path, name: str, runtime: str, served: Path | None = None) -> None:
    """Merge the members of NAME into one model, and move their files to it.

    `runtime` is the path of ONNX Runtime's library, absolute or relative to the version folder of NAME.
    `served` is the repository of a running server that the model is added to, if there is one.
    """
    tokenize, net, last = (repository / (name + end) for end in (TOKENIZE_SUFFIX, NET_SUFFIX, POSTPROCESS_SUFFIX))
    folder, version = repository / name, repository / name / "1"
    library = tokenize / "1" / LIBRARY
    # Triton keeps a library under its path for as long as it runs, so a different library needs a different name.
    backend = f"hfx_{hashlib.sha256(library.read_bytes()).hexdigest()[:12]}"
    own = version / f"libtriton_{backend}.so"
    moves = {
        tokenize / "1" / COMPILED_TOKENIZER: version / COMPILED_TOKENIZER,
        library: own,
        tokenize / "1" / "settings.json": version / "settings.json",
        tokenize / "warmup": folder / "warmup",
        last / "1" / "settings.json": version / "answer.json",
        net / "1": version / NET,  # the whole folder, as ONNX files have their weights beside them
    }
    config = read_config(folder / CONFIG)
    config.backend = backend
    _change(config, read_config(config_path(net, "cpu")), read_config(tokenize / CONFIG), runtime)
    for source, target in moves.items():
        if source.exists():
            source.rename(target)
    if SHARED_NET in config.parameters:
        _link_library(own, (repository, *([served] if served else [])))
    for member in (tokenize, net, last):
        shutil.rmtree(member, ignore_errors=True)
    _write(folder / CONFIG, config, "hfx, of the steps of an ensemble")


def _link_library(own: Path, repositories: Iterable[Path]) -> None:
    """Replace the backend's library `own` by a link to the same library of another model, if there is one.

    The system takes two files for two libraries, and each would have its own nets.
    """
    others = (each for folder in repositories for each in folder.glob(f"*/1/{own.name}") if each != own)
    if not (other := next(others, None)):
        return
    link = own.with_suffix(".link")
    with suppress(OSError):
        if other.is_symlink():
            link.symlink_to(other.resolve())
        else:
            os.link(other, link)
        link.replace(own)


def _change(config: Any, net: Any, tokenize: Any, runtime: str) -> None:
    """Turn `config` from the ensemble's into the merged model's: with the same tensors, and the steps' parameters."""
    config.ClearField("ensemble_scheduling")
    config.ClearField("platform")
    # An instance of a shared net only tokenizes, since the net runs in a thread of its own.
    config.instance_group.add(count=1 if SHARED_NET in net.parameters else INSTANCES, kind=KIND_CPU)
    config.model_warmup.extend(tokenize.model_warmup)
    settings = {key: value.string_value for step in (net, tokenize) for key, value in step.parameters.items()}
    settings.pop(OPERATORS_SHA256, None)  # the operators are in the backend's library
    model = settings.get(MODEL_FILE) or net.default_model_filename or "model.onnx"
    for key, value in (settings | {MODEL_FILE: f"{NET}/{model}", ONNXRUNTIME: runtime}).items():
        config.parameters[key].string_value = value


def _write(path: Path, config: Any, made_by: str) -> None:
    path.unlink()  # in a bundle it may be a hard link
    path.write_text(render_message(config, (f"Made by: {made_by}",)), "utf-8")
