"""The target `azureml`: batch deployments with a scoring script, or an online deployment of a bundle.

A batch deployment runs a Python script in an environment that Azure ML builds, so the part of hfx that scores rows is
copied beside the script. An online deployment serves a Triton model repository in NVIDIA's image, without code; the
bundle contains the packages that the image lacks. The YAML files are for `az ml`; `hfx batch` can also run the batch
deployments.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hfx
from hfx.deploy import bundle
from hfx.deploy.deployment import DeployedModel, Deployment
from hfx.deploy.folder import copy_models, output_folder, render, render_text
from hfx.deploy.wheels import NUMPY, ONNXRUNTIME, TOKENIZERS
from hfx.errors import UsageError
from hfx.names import CANDIDATE_LABELS, Task
from hfx.tasks import TASKS

MODELS_FOLDER = "models"
INSTANCE_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{1,63}")
DEFAULT_INSTANCES = {"cpu": "Standard_DS3_v2", "gpu": "Standard_NC4as_T4_v3"}
ENCODER_REQUESTS = 64  # concurrent requests of an encoder: enough to fill a batch
NAME_PATTERN = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{1,30}[a-zA-Z0-9]")  # names of endpoints and deployments
# Azure ML's own base image, which its batch jobs expect; the packages come from conda.yml.
BASE_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"
# The packages of Azure ML's batch jobs and of the scoring code; pip can install them together (docs/azureml.md).
JOB_PACKAGES = ("azureml-core==1.61.0.post4", "azureml-dataset-runtime[fuse]==1.62.0.post1")
HFX_PACKAGES = (
    NUMPY,
    TOKENIZERS,
    ONNXRUNTIME["cpu"],
    "tritonclient==2.73.0",
    "grpcio==1.85.1",
    "protobuf==6.33.6",
    "filelock==4.2.11",
)
# The modules of hfx that hfx.batch.azure.rows imports.
MODULES = ("__init__.py", "answering.py", "errors.py", "extras.py", "manifest.py", "metadata.py", "names.py",
           "releases.py", "strict_json.py")  # fmt: skip
PACKAGES = ("batch", "local", "python_backends", "repository", "rows", "tasks")


@dataclass(frozen=True, slots=True)
class Rows:
    """The input of a batch deployment: `--column` as of `hfx batch run` (empty: `text`), and settings for all rows."""

    column: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def write_batch(deployment: Deployment, output: Path, compute: str, rows: Rows, force: bool = False) -> None:
    """Write a batch endpoint, and a deployment for each model, on the cluster `compute`.

    Raises UsageError for names that Azure ML does not allow, and for GPUs, because the environment's ONNX Runtime is
    for CPUs.
    """
    if deployment.device != "cpu":
        raise UsageError(
            "Batch deployments of Azure ML run on CPUs: the environment has the ONNX Runtime for CPUs.",
            "Use --device cpu, or --kind online.",
        )
    _check_arch(deployment)
    endpoint = _checked(f"{deployment.name}-batch", "--name")
    names = deployment_names(deployment.names)
    of_models = {model.name: variables(model, rows) for model in deployment.models}
    values: dict[str, Any] = {
        "deployment": deployment,
        "endpoint": endpoint,
        "compute": _checked(compute, "--compute"),
        "names": names,
        "image": BASE_IMAGE,
        "packages": (*JOB_PACKAGES, *HFX_PACKAGES),
        "models_folder": MODELS_FOLDER,
    }
    with output_folder(output, "azureml", deployment, force) as folder:
        copy_models(deployment, folder / MODELS_FOLDER)
        render("azureml/batch", folder, values)
        copy_scoring_code(folder / "code")
        for model in deployment.models:
            own = {"name": names[model.name], "model": model, "variables": of_models[model.name]}
            text = render_text("azureml/batch_deployment.yml.j2", values | own)
            (folder / f"{names[model.name]}.yml").write_text(text, encoding="utf-8")


def _check_arch(deployment: Deployment) -> None:
    if deployment.arch != "amd64":
        raise UsageError("hfx knows no machine of Azure ML with Arm processors.", "Use --arch amd64.")


def deployment_names(models: Sequence[str]) -> dict[str, str]:
    """Return model -> name of its batch deployment. Raises UsageError for names that Azure ML does not allow."""
    names = {model: _checked(f"{model.replace('_', '-')}-rows", "from the model's name") for model in models}
    if len(set(names.values())) < len(names):
        raise UsageError(
            "Two models differ by '_' and '-' only, and Azure ML has no '_' in names.", "Deploy them one by one."
        )
    return names


def _checked(name: str, what: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} ({what}) can't be a name in Azure ML.",
            "Names have 3 to 32 letters, digits and '-', a letter first; --name and --compute choose others.",
        )
    return name


def variables(model: DeployedModel, rows: Rows) -> dict[str, str]:
    """Return the environment variables of a model's deployment. Raises UsageError if candidate labels are missing."""
    inputs = ",".join(f"{name}={name.removesuffix('_input')}" for name in TASKS[model.manifest.task].row.texts)
    column = rows.column or (inputs if "," in inputs else "text")
    if model.manifest.task is Task.ZERO_SHOT_CLASSIFICATION and CANDIDATE_LABELS not in rows.settings:
        raise UsageError(
            f"{model.name!r} needs labels.", """Give them, e.g. --settings '{"candidate_labels": ["sports", "art"]}'."""
        )
    settings = {"HFX_SETTINGS": json.dumps(rows.settings, ensure_ascii=False)} if rows.settings else {}
    return {"HFX_MODEL": model.name, "HFX_COLUMN": column, **settings}


def copy_scoring_code(folder: Path) -> None:
    """Copy the part of hfx that scores rows into `folder`/hfx."""
    source, target = Path(hfx.__file__).parent, folder / "hfx"
    target.mkdir(parents=True)
    for name in MODULES:
        shutil.copyfile(source / name, target / name)
    for name in PACKAGES:
        shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))


# Online


def write_online(
    deployment: Deployment, output: Path, packages: bundle.Packages, instance_type: str, force: bool = False
) -> bundle.Bundle:
    """Write an online endpoint, and a deployment of a bundle, which Azure ML serves without code.

    Raises UsageError for names that Azure ML does not allow, and the errors of hfx.deploy.bundle.
    """
    _check_arch(deployment)
    values = {
        "deployment": deployment,
        "endpoint": _checked(deployment.name, "--name"),
        "instance_type": check_instance_type(instance_type or DEFAULT_INSTANCES[deployment.device]),
        "models_folder": MODELS_FOLDER,
        "requests": sum(model.needs.slots or ENCODER_REQUESTS for model in deployment.models),
    }
    with output_folder(output, "azureml", deployment, force) as folder:
        written = bundle.write(deployment, folder / MODELS_FOLDER, packages)
        render("azureml/online", folder, values)
    return written


def check_instance_type(text: str) -> str:
    """Return `text`. Raises UsageError unless it looks like an Azure machine, such as Standard_DS3_v2."""
    if not INSTANCE_PATTERN.fullmatch(text):
        raise UsageError(
            f"{text!r} is not a machine of Azure.", "Give --instance-type as Azure writes it: Standard_DS3_v2."
        )
    return text
