"""Rules about the files, folders and declared tensors of any model, and about hfx.json."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import hfx
from hfx.errors import RepositoryError
from hfx.manifest import reraise
from hfx.names import MANIFEST_FILE
from hfx.native import missing as missing_libraries
from hfx.releases import MINIMUM_SECURE, security_warning
from hfx.repository.config_pbtxt import CONFIG
from hfx.repository.staging import is_placeholder, stagings_inside
from hfx.repository.subject import DEFAULT, ConfigFile, Problem, Subject, rule
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
    "ensemble", "onnxruntime_onnx", "tensorrt_plan", "pytorch_libtorch", "tensorflow_savedmodel", "tensorflow_graphdef",
}  # fmt: skip
MACHINE_PATH = re.compile(
    r"(?<![\w.:$/-])(?:/(?:home|root|tmp|var|usr|opt|mnt|media|srv|data|Users|private|workspace)/"
    r"|~/|[A-Za-z]:\\|file://)[^\s\"']*"
)
SETTINGS_FILES = ("hfx.json", "*/settings.json", "*/generation.json")
SETTINGS_BYTES = 4 << 20


def backend_of(config: ConfigFile) -> str:
    """Return the backend that Triton uses for a configuration; "ensemble" for an ensemble."""
    backend, platform = str(config.message.backend), str(config.message.platform)
    return backend or {"onnxruntime_onnx": "onnxruntime", "tensorrt_plan": "tensorrt"}.get(platform, platform)


@rule("HFX101", "error", "Write one; nothing is completed by guessing the rest.")
def missing_config(subject: Subject) -> Iterator[Problem]:
    """config.pbtxt is missing."""
    for model in subject.models.values():
        if DEFAULT not in model.configs:
            yield Problem(f"{model.name}/{CONFIG}", "is missing.")


@rule("HFX102", "error", "Correct the text, or export again.")
def unreadable_config(subject: Subject) -> Iterator[Problem]:
    """A configuration can't be parsed."""
    for model in subject.models.values():
        for config in model.configs.values():
            if config.message is None:
                yield Problem(config.path, config.error, config.error_line)


@rule("HFX103", "error", "Make name and folder equal, or leave the name out.")
def other_name(subject: Subject) -> Iterator[Problem]:
    """The name in a configuration is not the folder's."""
    for model, _, config in subject.parsed():
        if config.message.name not in ("", model.name):
            message = f"names the model {config.message.name!r}, but its folder is {model.name!r}."
            yield config.problem(message, "name")


@rule("HFX104", "warning")
def unknown_backend(subject: Subject) -> Iterator[Problem]:
    """A backend or platform that Triton's images don't bring."""
    for _, _, config in subject.parsed():
        for field, known in (("backend", BACKENDS), ("platform", PLATFORMS)):
            value = getattr(config.message, field)
            if value and value not in known:
                fix = f"Use one of {', '.join(sorted(known))}, or install the backend in the server."
                yield config.problem(f"{field} {value!r} is none that Triton's images bring.", field, fix=fix)


@rule("HFX105", "error", 'Add backend: "..." (or platform).')
def no_backend(subject: Subject) -> Iterator[Problem]:
    """Neither backend nor platform."""
    for _, _, config in subject.parsed():
        if not (config.message.backend or config.message.platform):
            yield config.problem("names no backend and no platform.")


@rule("HFX106", "error")
def no_version(subject: Subject) -> Iterator[Problem]:
    """No version folder."""
    for model in subject.models.values():
        if not model.versions:
            fix = f"Make a folder {model.name}/1, even an empty one."
            yield Problem(model.name, "has no version folder.", fix=fix)


@rule("HFX107", "error", "Put the file there, or correct default_model_filename.")
def missing_model_file(subject: Subject) -> Iterator[Problem]:
    """The model file is missing."""
    for model, _, config in subject.parsed():
        backend = backend_of(config)
        name = config.message.default_model_filename or DEFAULT_FILES.get(backend)
        if not name or backend in ("python", "ensemble"):
            continue
        if ".." in PurePosixPath(name).parts or name.startswith("/"):
            message = f"default_model_filename {name!r} leads out of the version folder."
            yield config.problem(message, "default_model_filename", fix="Put the file into the version folder.")
            continue
        for version in model.versions:
            if not (version / name).exists():
                yield config.problem(f"{subject.relative(version)}/{name} is missing.", "default_model_filename")


@rule("HFX108", "error", "Copy what it points to.")
def link_outside(subject: Subject) -> Iterator[Problem]:
    """A link leads out of the repository."""
    root = Path(os.path.realpath(subject.repository))
    for path in _links(subject):
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(root) or target.is_symlink():
            yield Problem(subject.relative(path), "is a link that leads out of the repository.")


def _links(subject: Subject) -> Iterator[Path]:
    for folder in (model.folder for model in subject.models.values()):
        if folder.is_symlink():
            yield folder
            continue
        for place, names, files in os.walk(folder, onerror=reraise):
            yield from (path for path in (Path(place, name) for name in (*names, *files)) if path.is_symlink())


@rule("HFX109", "error", "Wait for the export that is running; `hfx list` deletes what a dead one left.")
def leftover_staging(subject: Subject) -> Iterator[Problem]:
    """A staging folder that stops Triton."""
    for path in stagings_inside(subject.repository):
        if not is_placeholder(path):
            message = "is the staging folder of an export: Triton takes it for a model and does not start."
            yield Problem(subject.relative(path), message)


@rule("HFX110", "warning", "Write configs/gpu.pbtxt, or remove configs/cpu.pbtxt.")
def missing_variant(subject: Subject) -> Iterator[Problem]:
    """configs/cpu.pbtxt without configs/gpu.pbtxt."""
    for model in subject.models.values():
        manifest = subject.manifest_of(model)
        cpu_only = manifest is not None and manifest.precision.gpu is None
        if "cpu" in model.configs and "gpu" not in model.configs and not cpu_only:
            message = "is missing beside configs/cpu.pbtxt: --model-config-name=gpu falls back to config.pbtxt."
            yield Problem(f"{model.name}/configs/gpu.pbtxt", message)


@rule("HFX111", "warning", "Name files relative to the model's folder.")
def machine_path(subject: Subject) -> Iterator[Problem]:
    """A path of one machine."""
    for model in subject.models.values():
        texts = {config.path: config.text for config in model.configs.values()}
        for path in (path for pattern in SETTINGS_FILES for path in sorted(model.folder.glob(pattern))):
            try:
                texts[subject.relative(path)] = read_text(Path(os.path.realpath(path)), SETTINGS_BYTES)
            except RepositoryError:
                continue  # not a readable text, which other rules report
        for name, text in texts.items():
            for number, line in enumerate(text.splitlines(), 1):
                if match := MACHINE_PATH.search(line):
                    yield Problem(name, f"holds a path of one machine: {match[0]}.", number)


# Tensors


@rule("HFX301", "error", "Declare it once.")
def duplicate_tensor(subject: Subject) -> Iterator[Problem]:
    """A tensor is declared twice."""
    for _, _, config in subject.parsed():
        added = [("input", name) for entry in config.message.batch_input for name in entry.target_name]
        declared = Counter([*((kind, tensor.name) for kind, tensor in config.tensors()), *added])
        for (kind, name), count in declared.items():
            if count > 1:
                yield config.problem(f"{kind} {name!r} is declared twice.", kind, name)


@rule("HFX302", "error", "Write all three: the server does not guess them.")
def incomplete_tensor(subject: Subject) -> Iterator[Problem]:
    """A tensor is declared incompletely."""
    for _, _, config in subject.parsed():
        for kind in ("input", "output"):
            if not getattr(config.message, kind):
                yield config.problem(f"declares no {kind}.", fix=f"Declare every {kind}.")
        for kind, tensor in config.tensors():
            if not (tensor.name and tensor.data_type and tensor.dims):
                message = f"{kind} {tensor.name!r} lacks a name, data_type or dims."
                yield config.problem(message, kind, tensor.name or kind)


@rule("HFX303", "error", "Use positive sizes, and -1 for any size.")
def wrong_dimension(subject: Subject) -> Iterator[Problem]:
    """A dimension that no tensor has."""
    for _, _, config in subject.parsed():
        for kind, tensor in config.tensors():
            if any(size == 0 or size < -1 for size in tensor.dims):
                yield config.problem(f"{kind} {tensor.name!r} has dims {list(tensor.dims)}.", kind, tensor.name)


# hfx.json: the files that it lists, and the Triton release and the processor that the model needs


@rule("HFX201", "error", "Export the model again.")
def damaged(subject: Subject) -> Iterator[Problem]:
    """hfx.json is damaged."""
    for entry in subject.entries:
        if entry.problem:
            yield Problem(f"{entry.name}/{MANIFEST_FILE}", entry.problem)


@rule("HFX202", "error", "Export the model again, or put the file back.")
def missing(subject: Subject) -> Iterator[Problem]:
    """A published file is missing."""
    yield from _of_kind(subject, "missing")


@rule("HFX203", "error", "Export the model again: its proof is void.")
def changed(subject: Subject) -> Iterator[Problem]:
    """A published file was changed."""
    yield from _of_kind(subject, "changed", "outside", "unreadable")


@rule("HFX204", "error", "Move the file away, or export the model again.")
def unlisted(subject: Subject) -> Iterator[Problem]:
    """A file that was not published."""
    yield from _of_kind(subject, "unlisted")


@rule("HFX205", "warning")
def older(subject: Subject) -> Iterator[Problem]:
    """A model that an older version of hfx made."""
    for entry in subject.entries:
        made = entry.manifest.versions.get("hfx") if entry.manifest else None
        if made and _numbers(made) < _numbers(hfx.__version__):
            message = f"was made by hfx {made}; this is {hfx.__version__}."
            fix = f"Export it again: hfx export --again {entry.name}."
            yield Problem(f"{entry.name}/{MANIFEST_FILE}", message, fix=fix)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _of_kind(subject: Subject, *kinds: str) -> Iterator[Problem]:
    for entry in subject.entries:
        for problem in subject.file_problems(entry.manifest) if entry.manifest else ():
            if problem.kind in kinds:
                yield Problem(problem.path, problem.message)


@rule("HFX801", "error")
def too_old(subject: Subject) -> Iterator[Problem]:
    """A Triton release that can't serve a model."""
    for entry in subject.entries:
        if entry.manifest and subject.release.tag < (minimum := entry.manifest.triton.minimum):
            message = f"says that the model needs Triton {minimum}; {subject.release.tag} is older."
            fix = f"Serve it with {max(MINIMUM_SECURE, minimum)}."
            yield Problem(f"{entry.name}/{MANIFEST_FILE}", message, fix=fix)


@rule("HFX802", "warning", f"Serve the repository with {MINIMUM_SECURE} or later.")
def insecure(subject: Subject) -> Iterator[Problem]:
    """A Triton release with known vulnerabilities."""
    if warning := security_warning(subject.release.tag):
        yield Problem(".", warning)


@rule("HFX803", "warning", "Export the model again. If it is from a bundle, write a bundle for that processor.")
def no_library(subject: Subject) -> Iterator[Problem]:
    """No native library for the processor."""
    for entry in subject.entries:
        for path in missing_libraries(entry.manifest.files, subject.machine) if entry.manifest else ():
            yield Problem(path, f"is missing: on {subject.machine}, the model is served without hfx's native code.")
