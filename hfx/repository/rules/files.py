"""Rules about a model's files, folders and declared tensors, whatever it is."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from hfx.errors import RepositoryError
from hfx.repository.staging import is_placeholder, stagings_inside
from hfx.repository.subject import CONFIG, DEFAULT, ConfigFile, Model, Problem, Subject
from hfx.strict_json import read_text

# triton-inference-server/server, docs/user_guide/model_repository.md: "Model Files".
DEFAULT_FILES = {
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "openvino": "model.xml",
    "pytorch": "model.pt",
    "dali": "model.dali",
}
BACKENDS = {*DEFAULT_FILES, "python", "tensorflow", "fil", "vllm", "tensorrtllm", "identity", "repeat", "square"}
PLATFORMS = {
    "ensemble",
    "onnxruntime_onnx",
    "tensorrt_plan",
    "pytorch_libtorch",
    "tensorflow_savedmodel",
    "tensorflow_graphdef",
}
MACHINE_PATH = re.compile(
    r"(?<![\w.:$/-])(?:/(?:home|root|tmp|var|usr|opt|mnt|media|srv|data|Users|private|workspace)/"
    r"|~/|[A-Za-z]:\\|file://)[^\s\"']*"
)
SETTINGS_FILES = ("hfx.json", "*/settings.json", "*/generation.json")
SETTINGS_BYTES = 4 << 20


def backend_of(config: ConfigFile) -> str:
    """The backend that Triton takes for a configuration; "ensemble" for an ensemble."""
    backend, platform = str(config.message.backend), str(config.message.platform)
    return backend or {"onnxruntime_onnx": "onnxruntime", "tensorrt_plan": "tensorrt"}.get(platform, platform)


def missing_config(subject: Subject) -> Iterator[Problem]:
    """HFX101."""
    for model in subject.models.values():
        if DEFAULT not in model.configs:
            yield Problem(
                f"{model.name}/{CONFIG}", None, "is missing.", "Write one; nothing is completed by guessing the rest."
            )


def unreadable_config(subject: Subject) -> Iterator[Problem]:
    """HFX102."""
    for model in subject.models.values():
        for config in model.configs.values():
            if config.message is None:
                yield Problem(config.path, config.problem_line, config.problem, "Correct the text, or export again.")


def other_name(subject: Subject) -> Iterator[Problem]:
    """HFX103."""
    for model, _, config in subject.parsed():
        if config.message.name not in ("", model.name):
            yield Problem(
                config.path,
                config.line("name"),
                f"names the model {config.message.name!r}, but its folder is {model.name!r}.",
                "Make name and folder equal, or leave the name out.",
            )


def unknown_backend(subject: Subject) -> Iterator[Problem]:
    """HFX104."""
    for _, _, config in subject.parsed():
        message = config.message
        for field, value, known in (("backend", message.backend, BACKENDS), ("platform", message.platform, PLATFORMS)):
            if value and value not in known:
                yield Problem(
                    config.path,
                    config.line(field),
                    f"{field} {value!r} is none that Triton's images bring.",
                    f"Use one of {', '.join(sorted(known))}, or install the backend in the server.",
                )


def no_backend(subject: Subject) -> Iterator[Problem]:
    """HFX105."""
    for _, _, config in subject.parsed():
        if not (config.message.backend or config.message.platform):
            yield Problem(config.path, None, "names no backend and no platform.", 'Add backend: "..." (or platform).')


def no_version(subject: Subject) -> Iterator[Problem]:
    """HFX106."""
    for model in subject.models.values():
        if not model.versions:
            yield Problem(
                model.name, None, "has no version folder.", f"Make a folder {model.name}/1, even an empty one."
            )


def missing_model_file(subject: Subject) -> Iterator[Problem]:
    """HFX107."""
    for model, _, config in subject.parsed():
        backend = backend_of(config)
        name = config.message.default_model_filename or DEFAULT_FILES.get(backend)
        if not name or backend in ("python", "ensemble"):
            continue
        if ".." in PurePosixPath(name).parts or name.startswith("/"):
            yield Problem(
                config.path,
                config.line("default_model_filename"),
                f"default_model_filename {name!r} leads out of the version folder.",
                "Put the file into the version folder.",
            )
            continue
        for version in model.versions:
            if not (version / name).exists():
                yield Problem(
                    config.path,
                    config.line("default_model_filename"),
                    f"{subject.relative(version)}/{name} is missing.",
                    "Put the file there, or correct default_model_filename.",
                )


def link_outside(subject: Subject) -> Iterator[Problem]:
    """HFX108."""
    root = Path(os.path.realpath(subject.repository))
    for path in _links(subject):
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(root) or target.is_symlink():
            yield Problem(
                subject.relative(path), None, "is a link that leads out of the repository.", "Copy what it points to."
            )


def _links(subject: Subject) -> Iterator[Path]:
    for folder in (model.folder for model in subject.models.values()):
        if folder.is_symlink():
            yield folder
            continue
        for place, names, files in os.walk(folder):
            yield from (path for path in (Path(place, name) for name in (*names, *files)) if path.is_symlink())


def leftover_staging(subject: Subject) -> Iterator[Problem]:
    """HFX109."""
    for path in (path for path in stagings_inside(subject.repository) if not is_placeholder(path)):
        yield Problem(
            subject.relative(path),
            None,
            "is the staging folder of an export: Triton takes it for a model and does not start.",
            "Wait for the export that is running; `hfx list` deletes what a dead one left.",
        )


def missing_variant(subject: Subject) -> Iterator[Problem]:
    """HFX110."""
    for model in subject.models.values():
        if "cpu" in model.configs and "gpu" not in model.configs and not _built_for_cpu_only(subject, model):
            yield Problem(
                f"{model.name}/configs/gpu.pbtxt",
                None,
                "is missing beside configs/cpu.pbtxt: --model-config-name=gpu falls back to config.pbtxt.",
                "Write configs/gpu.pbtxt, or remove configs/cpu.pbtxt.",
            )


def _built_for_cpu_only(subject: Subject, model: Model) -> bool:
    entry = subject.entry_of(model)
    return entry is not None and entry.manifest is not None and entry.manifest.precision.gpu is None


def machine_path(subject: Subject) -> Iterator[Problem]:
    """HFX111."""
    for model in subject.models.values():
        texts = {config.path: config.text for config in model.configs.values()}
        for path in (path for pattern in SETTINGS_FILES for path in sorted(model.folder.glob(pattern))):
            try:
                texts[subject.relative(path)] = read_text(Path(os.path.realpath(path)), SETTINGS_BYTES)
            except RepositoryError:
                continue  # not a readable text: other rules say so
        for name, text in texts.items():
            for number, line in enumerate(text.splitlines(), 1):
                if found := MACHINE_PATH.search(line):
                    yield Problem(
                        name,
                        number,
                        f"holds a path of one machine: {found[0]}.",
                        "Name files relative to the model's folder.",
                    )


# Tensors


def duplicate_tensor(subject: Subject) -> Iterator[Problem]:
    """HFX301."""
    for _, _, config in subject.parsed():
        message = config.message
        inputs = [*(i.name for i in message.input), *(name for b in message.batch_input for name in b.target_name)]
        for kind, names in (("input", inputs), ("output", [o.name for o in message.output])):
            for name in (name for name, count in Counter(names).items() if count > 1):
                yield Problem(
                    config.path, config.line(kind, name), f"{kind} {name!r} is declared twice.", "Declare it once."
                )


def incomplete_tensor(subject: Subject) -> Iterator[Problem]:
    """HFX302."""
    for _, _, config in subject.parsed():
        for kind, tensors in (("input", config.message.input), ("output", config.message.output)):
            if not tensors:
                yield Problem(config.path, None, f"declares no {kind}.", f"Declare every {kind}.")
            for tensor in tensors:
                if not (tensor.name and tensor.data_type and tensor.dims):
                    yield Problem(
                        config.path,
                        config.line(kind, tensor.name or kind),
                        f"{kind} {tensor.name!r} lacks a name, data_type or dims.",
                        "Write all three: the server does not guess them.",
                    )


def wrong_dimension(subject: Subject) -> Iterator[Problem]:
    """HFX303."""
    for _, _, config in subject.parsed():
        for kind, tensors in (("input", config.message.input), ("output", config.message.output)):
            for tensor in tensors:
                if any(size == 0 or size < -1 for size in tensor.dims):
                    yield Problem(
                        config.path,
                        config.line(kind, tensor.name),
                        f"{kind} {tensor.name!r} has dims {list(tensor.dims)}.",
                        "Use positive sizes, and -1 for any size.",
                    )
