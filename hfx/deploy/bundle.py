"""The target `bundle`: a model repository that NVIDIA's own Triton image serves, with the packages of its models.

NVIDIA's images lack tokenizers and the Python onnxruntime, and a Python model can't install packages. So the wheels are
unpacked into one folder of the repository. Each Python model starts with START_FILE (default_model_filename of its
config.pbtxt), which puts that folder first on sys.path. Triton's stub imports START_FILE before its own module
(measured with Triton 2.51), so numpy is also imported from that folder, and no environment variable is needed.

An encoder is a single C++ model if its export has proven that this is possible (hfx/triton/one_hop.py). On CPUs, the
nets of other encoders become Python models: hfx's onnxruntime has native operators, and pads less than the image's
backend.

The packages are in the version folder of the first model. Triton treats every folder of a repository as a model, warns
about folders of a model that are not versions, and ignores further files in a version folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from hfx.deploy.arch import is_foreign
from hfx.deploy.deployment import DeployedModel, Deployment, config_of, is_others
from hfx.deploy.folder import copy_models, folder_bytes, output_folder, render, render_text
from hfx.deploy.wheels import Wheel, fetch, requirements, unpack
from hfx.errors import ModelCorrupt, UsageError
from hfx.manifest import Manifest, Precision, hash_folder, write_manifest
from hfx.names import MANIFEST_FILE, PACKAGES_FOLDER
from hfx.python_backends.deploy import onnxruntime_files
from hfx.python_backends.onnxruntime.config import MODEL_FILE
from hfx.repository.config_pbtxt import CONFIG, MAX_CONFIG_BYTES, VARIANTS, config_path
from hfx.repository.edit import rendered
from hfx.repository.lint import check_rules
from hfx.strict_json import Json, read_text
from hfx.triton import liveness, one_hop
from hfx.triton.arguments import CONTAINER_MODELS, CONTAINER_SECONDS, server_arguments

START_FILE = "start.py"
ENTRY = "model.py"  # the file of onnxruntime_files() that START_FILE imports
CHOICE = "bundle"  # the key in the manifest's choices
RECORD = {"arch", "device", "packages", "python"}  # the members of that entry
OLDER = {"arch": "amd64"}  # the members that bundles of earlier versions lack
PROBE = Path(liveness.__file__).parent  # the probe needs only the standard library, so it runs in any image


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages to unpack: for which Python, and from which folder of wheels (None: the package index)."""

    python: str
    offline: Path | None = None
    with_numpy: bool = True


@dataclass(frozen=True, slots=True)
class Bundle:
    """A written bundle: its wheels, and the sizes in bytes of the unpacked packages and of the whole folder."""

    wheels: tuple[Wheel, ...]
    package_bytes: int
    bytes: int


def python_of(deployment: Deployment, requested: str = "") -> str:
    """Return the image's Python version: `requested`, or the release's. Raises UsageError if neither is known."""
    python = requested or deployment.release.python
    if python is None:
        raise UsageError(f"The Python of Triton {deployment.release.tag} is not known.", "Give it with --python.")
    if not (python.startswith("3.") and python[2:].isascii() and python[2:].isdecimal()):
        raise UsageError(f"--python {python!r} is not a version.", "Give one like 3.12.")
    return python


def write(deployment: Deployment, output: Path, packages: Packages, force: bool = False) -> Bundle:
    """Write the bundle. Raises FetchFailed if a wheel can't be fetched, and the errors of output_folder."""
    needed = requirements(deployment, packages.with_numpy)
    with output_folder(output, "bundle", deployment, force) as folder:
        copy_models(deployment, folder)
        home = folder / packages_path(deployment)
        wheels = _vendor(needed, packages, deployment.machine, home)
        if deployment.device == "cpu" and not all(each.is_generator or each.is_native for each in deployment.models):
            _add_backend(home)
        for model in deployment.models:
            _make_ready(deployment, model, folder, packages, wheels)
        check_rules(folder, deployment.release.tag, "Export the models again.")
        render("bundle", folder, _values(deployment, packages, wheels))
        made = Bundle(wheels, folder_bytes(home), folder_bytes(folder))
    return made


def packages_path(deployment: Deployment) -> str:
    """Return the folder of the packages, relative to the repository. All models share it."""
    return f"{deployment.models[0].name}/1/{PACKAGES_FOLDER}"


def packages_of(deployment: Deployment) -> str:
    """Return the folder of the packages, relative to the repository, if the models are from a bundle; else empty.

    Raises UsageError if only some models are from a bundle, and for a bundle for another device, processor or
    Python. Raises ModelCorrupt for a manifest that does not describe its bundle.
    """
    records = [_record(model.manifest) for model in deployment.models]
    if not any(records):
        return ""
    if not all(records):
        raise UsageError("Some of the models are a bundle's, and others not.", "Deploy them one after the other.")
    for key, value in (("device", deployment.device), ("arch", deployment.arch), ("python", deployment.release.python)):
        if records[0][key] != value:
            raise UsageError(
                f"The bundle is for {key} {records[0][key]}, and Triton {deployment.release.tag} here for {value}.",
                "Write the bundle again, or give its --device, --arch and --triton.",
            )
    return records[0]["packages"]


def _record(manifest: Manifest) -> Mapping[str, str]:
    """Return the manifest's record of the model's bundle; empty if the model is not from a bundle.

    Raises ModelCorrupt.
    """
    recorded: Any = manifest.choices.get(CHOICE)
    if not recorded:
        return {}
    record = {**OLDER, **recorded} if isinstance(recorded, Mapping) else {}
    if not all(isinstance(record.get(name), str) for name in RECORD):
        names = ", ".join(sorted(RECORD))
        raise ModelCorrupt(
            f"choices.{CHOICE} of the manifest of {manifest.name} is not an object of the texts {names}.",
            "Write the bundle again with --force.",
        )
    path = PurePosixPath(record["packages"])
    if path.is_absolute() or ".." in path.parts:
        raise ModelCorrupt(f"The packages of {manifest.name} are outside of its folder: {path}.", "Write it again.")
    return record


def _vendor(needed: Sequence[str], packages: Packages, machine: str, home: Path) -> tuple[Wheel, ...]:
    home.mkdir()
    with tempfile.TemporaryDirectory(prefix="hfx-wheels-") as folder:
        wheels = fetch(needed, packages.python, machine, Path(folder), packages.offline)
        for wheel in wheels:
            unpack(Path(folder) / wheel.name, home)
    shutil.copytree(PROBE, home / PROBE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return wheels


def _add_backend(home: Path) -> None:
    """Copy hfx's onnxruntime backend into the folder of packages, from which the ENTRY of nets imports it."""
    for target, source in onnxruntime_files().items():
        if target != ENTRY:
            (home / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, home / target)


# Models


def _make_ready(
    deployment: Deployment, model: DeployedModel, folder: Path, packages: Packages, wheels: Sequence[Wheel]
) -> None:
    """Give the copied model the device's configuration, the start file and a new manifest."""
    manifest, device = model.manifest, deployment.device
    net = config_of(folder, f"{model.name}_net", device) if f"{model.name}_net" in manifest.folders else None
    for path in manifest.files:
        if is_others(path, net, device) or is_foreign(path, deployment.arch):
            (folder / path).unlink()
    if net is not None and model.is_native:
        library = one_hop.runtime_library(folder / packages_path(deployment) / "onnxruntime")
        assert library is not None  # the pinned wheel has the library
        runtime = os.path.relpath(library, folder / model.name / "1")
        one_hop.merge(folder, model.name, runtime, device=device, machine=deployment.machine)
    folders = tuple(name for name in manifest.folders if (folder / name).is_dir())
    for name, config in {name: config_of(folder, name, device) for name in folders}.items():
        is_net = config.backend == "onnxruntime"
        _configure(folder / name, config, device, packages)
        if is_net and config.backend == "python":
            shutil.copyfile(onnxruntime_files()[ENTRY], folder / name / "1" / ENTRY)
        if config.backend == "python":
            text = render_text("bundle_start.py.j2", {"packages": packages_path(deployment).split("/")})
            (folder / name / "1" / START_FILE).write_text(text, encoding="utf-8")
    files = {path: entry for name in folders for path, entry in hash_folder(folder / name, folder).items()}
    record: dict[str, Json] = {
        "device": device,
        "arch": deployment.arch,
        "triton": deployment.release.tag,
        "python": packages.python,
        "packages": packages_path(deployment),
        "wheels": {wheel.name: wheel.sha256 for wheel in wheels},
    }
    precision = Precision(**{**asdict(Precision(None, None)), device: model.precision})
    made = replace(
        manifest, folders=folders, files=files, precision=precision, choices={**manifest.choices, CHOICE: record}
    )
    write_manifest(made, folder / model.name / MANIFEST_FILE)


def _configure(folder: Path, config: Any, device: str, packages: Packages) -> None:
    """Write config.pbtxt for the device, and remove its variants. Python models start with START_FILE."""
    old = read_text(config_path(folder, device), MAX_CONFIG_BYTES)
    changes = [f"for {device}"]
    if config.backend == "onnxruntime" and device == "cpu":
        config.backend = "python"
        config.parameters[MODEL_FILE].string_value = config.default_model_filename
        changes.append("backend python")
    if config.backend == "python":
        config.default_model_filename = START_FILE
        changes.append(f"default_model_filename {START_FILE}")
    (folder / CONFIG).write_text(
        rendered(old, config, f"Changed by: hfx deploy bundle ({', '.join(changes)})"), "utf-8"
    )
    shutil.rmtree(folder / VARIANTS, ignore_errors=True)


def _values(deployment: Deployment, packages: Packages, wheels: Sequence[Wheel]) -> dict[str, Any]:
    return {
        "deployment": deployment,
        "packages": packages,
        "packages_path": packages_path(deployment),
        "wheels": wheels,
        "arguments": server_arguments(
            CONTAINER_MODELS, deployment.device, *CONTAINER_SECONDS, secret=deployment.secret
        ),
        "models_folder": CONTAINER_MODELS,
    }
