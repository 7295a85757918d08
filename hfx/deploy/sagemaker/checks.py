"""Finds mistakes in the calls of a written folder, which a user may have edited, before SageMaker reports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hfx.deploy.deployment import CUDA_13_TAG
from hfx.deploy.sagemaker.aws import CUDA_13_AMI, GUIDE, REFERENCE, TAG_PATTERN
from hfx.deploy.sagemaker.requests import containers, read_bodies, readable
from hfx.repository.subject import Finding

MODEL, CONFIG = "create-model.json", "create-endpoint-config.json"
EXCLUDED = ("InstanceType", "InitialInstanceCount", "InferenceAmiVersion", "DataCaptureConfig", "AsyncInferenceConfig")
GPU_PREFIXES = ("ml.g", "ml.p")
DEFAULT_MODEL, LOG = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "SAGEMAKER_TRITON_LOG_VERBOSE"
START_SCRIPT = "https://github.com/triton-inference-server/server/blob/main/docker/sagemaker/serve"


Body = dict[str, Any]


def findings(folder: Path) -> list[Finding]:
    """Return the mistakes in the calls of `folder`. Raises UsageError if the calls can't be read."""
    bodies = read_bodies(folder)
    model, config = bodies[MODEL], bodies[CONFIG]
    with readable(folder):
        return [*serverless_exclusions(config), *old_driver(model, config), *verbose_log(model), *unnamed_model(model)]


def serverless_exclusions(config: Body) -> Iterator[Finding]:
    """Yield a finding for each field of `config` that a serverless endpoint does not have."""
    fix = f"Leave it out, or use instances. {GUIDE}/serverless-endpoints.html"
    for variant in config["ProductionVariants"]:
        for key in EXCLUDED if "ServerlessConfig" in variant else ():
            if key in variant or key in config:
                yield Finding("HFX941", "error", CONFIG, None, f"A serverless endpoint has no {key}.", fix)


def old_driver(model: Body, config: Body) -> Iterator[Finding]:
    """Yield a finding if GPU instances of `config` have a driver older than the CUDA of images in `model`."""
    newest = max((tag for tag, _ in _servers(model)), default="")
    for variant in config["ProductionVariants"]:
        is_gpu = variant.get("InstanceType", "").startswith(GPU_PREFIXES) and "ServerlessConfig" not in variant
        if is_gpu and newest >= CUDA_13_TAG and variant.get("InferenceAmiVersion") != CUDA_13_AMI:
            message = f"Triton {newest} is built for CUDA 13, whose driver the instance lacks."
            fix = f"Set InferenceAmiVersion to {CUDA_13_AMI}. {REFERENCE}/API_ProductionVariant.html"
            yield Finding("HFX942", "error", CONFIG, None, message, fix)


def verbose_log(model: Body) -> Iterator[Finding]:
    """Yield a finding if a server of `model` logs every request."""
    if any(str(variables.get(LOG, "true")).lower() != "false" for _, variables in _servers(model)):
        message = f"Triton logs every request to CloudWatch unless {LOG} is false."
        yield Finding("HFX943", "warning", MODEL, None, message, f"Set {LOG} to false. {START_SCRIPT}")


def unnamed_model(model: Body) -> Iterator[Finding]:
    """Yield a finding if a server of `model` does not know which of its models answers."""
    if any(not variables.get(DEFAULT_MODEL) for _, variables in _servers(model)):
        message = f"Without {DEFAULT_MODEL} only an archive with one model starts."
        yield Finding("HFX944", "warning", MODEL, None, message, f"Set {DEFAULT_MODEL}. {START_SCRIPT}")


def _servers(model: Body) -> list[tuple[str, Body]]:
    """Return the Triton release and the environment variables of each container with AWS's Triton image."""
    triton = [container for container in containers(model) if "tritonserver" in container["Image"]]
    tags = [(TAG_PATTERN.search(container["Image"]), container.get("Environment", {})) for container in triton]
    return [(match[1], variables) for match, variables in tags if match]
