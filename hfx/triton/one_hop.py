"""Merging the steps of an encoder into one model in C++, which takes texts and returns answers (hfx/native/backend).

A published encoder is an ensemble of Python steps, which runs on every device. Its members become one model with the
same name, tensors and parameters. This is done in a server's own copy of the models, or in a bundle. The merge requires
that the export has proven a compiled tokenizer and, for GPUs, a graph of rows; and that nothing is configured that only
the Python steps can do. The Python processes of the tokenizer, the net and the last step are no longer needed
(docs/benchmarks-encoder.md).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hfx.names import COMPILED_TOKENIZER, MANIFEST_FILE, NET_SUFFIX, POSTPROCESS_SUFFIX, TOKENIZE_SUFFIX, VARIANT
from hfx.native.build import MACHINE, TARGETS
from hfx.python_backends.onnxruntime.config import MODEL_FILE, OPERATORS, ROWS_FILE, SHARED_NET
from hfx.repository.catalog import model_folders
from hfx.repository.config_pbtxt import CONFIG, config_path, render_message
from hfx.triton.installation import ONNXRUNTIME
from hfx.triton.models import KIND_CPU, KIND_GPU, model_file, read_config

Steps = Literal["native", "python"]
NET = "net"  # in the merged model's version folder: the folder with the contents of NAME_net/1
CUDA_PROVIDER = "libonnxruntime_providers_cuda.so"


@dataclass(frozen=True)
class Hosting:
    """How the backend in C++ hosts a net: on which `device`, by how many `instances`.

    `file` is the parameter of NAME_net with the name of the ONNX file that C++ runs; empty if it is the file of the
    Python steps.
    """

    device: str = "cpu"
    instances: int = 2  # one runs the net, while the other takes requests
    file: str = ""

    @property
    def kind(self) -> int:
        """The kind of the instances of the net."""
        return {"cpu": KIND_CPU, "gpu": KIND_GPU}[self.device]


ON_CPU = Hosting()
SHARED = Hosting(instances=1)  # it only tokenizes: a shared net runs in a thread of its own
ON_GPU = Hosting("gpu", instances=4, file=ROWS_FILE)  # they tokenize, while a thread of the backend runs the net
HOSTING: Mapping[str, Hosting] = {
    **dict.fromkeys(("int8", "int8-functions", "fp32", "native-fp32", "native-bf16"), ON_CPU),
    **dict.fromkeys(("gpu-fp32", "gpu-fp16"), ON_GPU),
    **dict.fromkeys(("adapted", "adapted-fp32"), SHARED),
}


def hosting_of(net: Any) -> Hosting:
    """Return how C++ hosts the net with this configuration (protobuf), by its recorded variant.

    For models that were exported before it was recorded, the variant is derived.
    """
    recorded = net.parameters[VARIANT].string_value if VARIANT in net.parameters else ""
    if recorded in HOSTING:
        return HOSTING[recorded]
    if SHARED_NET in net.parameters:
        return SHARED
    return ON_GPU if any(group.kind == KIND_GPU for group in net.instance_group) else ON_CPU


def runtime_library(package: Path, device: str = "cpu") -> Path | None:
    """Return the library of ONNX Runtime in its Python `package`.

    Returns None if it is built into the module, or if it can't use the `device`.
    """
    folder = package / "capi"
    can_use = device == "cpu" or (folder / CUDA_PROVIDER).is_file()
    return next(iter(sorted(folder.glob("libonnxruntime.so.*"))), None) if can_use else None


def prepare_encoders(
    repository: Path, backend: str | None, native: bool, served: Path | None = None, device: str = "cpu"
) -> dict[str, str]:
    """Convert each encoder in `repository` to the model or models that are served on the `device` of this machine.

    With `native`, an encoder becomes one model if possible. The nets of other encoders run in `backend`, which is hfx's
    onnxruntime backend in Python, if it is given. `served` is the repository of a running server that the models are
    added to. Returns the reasons, by name, why encoders keep their steps in spite of `native`.
    """
    kept = dict[str, str]()
    spec = importlib.util.find_spec(ONNXRUNTIME) if native else None
    runtime = runtime_library(Path(spec.origin).parent, device) if spec and spec.origin else None
    missing = "onnxruntime-gpu" if device == "gpu" else f"the library of {ONNXRUNTIME}"
    for folder in model_folders(repository):
        net = repository / (folder.name + NET_SUFFIX)
        if not (net.is_dir() and (folder / MANIFEST_FILE).is_file()):
            continue
        reason = why_not(repository, folder.name, device) if runtime else f"{missing} was not found"
        if not reason:
            merge(repository, folder.name, str(runtime), served, device)
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


def why_not(repository: Path, name: str, device: str = "cpu", machine: str = MACHINE) -> str:
    """Return the reason why the steps of the model NAME can't be one model on `device`; empty if they can.

    `machine` is the processor that it will run on, as platform.machine() names it.
    """
    tokenize, net, last = (repository / (name + end) for end in (TOKENIZE_SUFFIX, NET_SUFFIX, POSTPROCESS_SUFFIX))
    if not ((repository / name / MANIFEST_FILE).is_file() and net.is_dir() and tokenize.is_dir()):
        return "it is not an encoder of hfx"
    library = TARGETS[machine].library if machine in TARGETS else ""
    needed = {COMPILED_TOKENIZER: "compiled tokenizer", library: f"library for {machine} processors"}
    if lost := [what for file, what in needed.items() if not (tokenize / "1" / file).is_file()]:
        return f"the export has no {lost[0]} for it"
    config = read_config(config_path(net, device))
    if hosting_of(config).device != device:
        return f"it was not exported for {device.upper()}s"
    if config.backend != ONNXRUNTIME or config.optimization.execution_accelerators.ByteSize():
        return "its net does not run in ONNX Runtime" + (" alone" if config.backend == ONNXRUNTIME else "")
    if not (net / "1" / _model_file(config)).is_file():
        return f"the export has no graph of rows for {device.upper()}s; export it again to get one"
    steps = {tokenize: KIND_CPU, net: hosting_of(config).kind, **({last: KIND_CPU} if last.is_dir() else {})}
    reasons = (_needs_python(folder, kind, device) for folder, kind in steps.items())
    return next((reason for reason in reasons if reason), "")


def _model_file(net: Any) -> str:
    """Return the ONNX file that C++ runs, in the version folder of a net; empty if there is none."""
    parameter = hosting_of(net).file
    if not parameter:
        return model_file(net)
    return str(net.parameters[parameter].string_value) if parameter in net.parameters else ""


def _needs_python(folder: Path, kind: int, device: str) -> str:
    """Return the setting of a step that needs Triton's own queue or instances; empty if there is none.

    Its instances are of the `kind`.
    """
    config = read_config(config_path(folder, device))
    if any(group.kind != kind or group.count > 1 or len(group.gpus) > 1 for group in config.instance_group):
        return f"{folder.name} has its own instance_group"
    batching = config.dynamic_batching
    chosen = {field.name for field, _ in batching.ListFields()} - {"default_queue_policy"}
    if chosen or batching.default_queue_policy.ByteSize():
        return f"{folder.name} has its own dynamic_batching"
    return ""


def merge(
    repository: Path, name: str, runtime: str, served: Path | None = None, device: str = "cpu", machine: str = MACHINE
) -> None:
    """Merge the members of NAME into one model for `device`, and move their files to it.

    `runtime` is the path of ONNX Runtime's library, absolute or relative to the version folder of NAME.
    `served` is the repository of a running server that the model is added to, if there is one. `machine` is the
    processor that it will run on, as platform.machine() names it.
    """
    tokenize, net, last = (repository / (name + end) for end in (TOKENIZE_SUFFIX, NET_SUFFIX, POSTPROCESS_SUFFIX))
    folder, version = repository / name, repository / name / "1"
    library = tokenize / "1" / TARGETS[machine].library
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
    _change(config, read_config(config_path(net, device)), read_config(tokenize / CONFIG), runtime)
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
    hosting = hosting_of(net)
    group = config.instance_group.add(count=hosting.instances, kind=hosting.kind)
    if hosting.kind == KIND_GPU:
        # One net, on the GPU that the configuration names, or on the first one that the process sees.
        group.gpus.extend([number for each in net.instance_group for number in each.gpus][:1] or [0])
    config.model_warmup.extend(tokenize.model_warmup)
    given = {key: value.string_value for step in (net, tokenize) for key, value in step.parameters.items()}
    # The operators are in the backend's library, which only reads whether the net has any.
    dropped = (f"{OPERATORS}_", ROWS_FILE, VARIANT)
    settings = {key: value for key, value in given.items() if not key.startswith(dropped)}
    own = {MODEL_FILE: f"{NET}/{_model_file(net)}", ONNXRUNTIME: runtime}
    for key, value in (settings | own).items():
        config.parameters[key].string_value = value


def _write(path: Path, config: Any, made_by: str) -> None:
    path.unlink()  # in a bundle it may be a hard link
    path.write_text(render_message(config, (f"Made by: {made_by}",)), "utf-8")
