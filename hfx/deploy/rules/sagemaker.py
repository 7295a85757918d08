"""Rules for the bodies of SageMaker's calls: CreateModel and CreateEndpointConfig."""

from __future__ import annotations

from collections.abc import Iterator

from hfx.deploy.deployment import CUDA_13_TAG
from hfx.deploy.rules.subject import Document, Files, Table, table, tables
from hfx.deploy.sagemaker.aws import CUDA_13_AMI, GUIDE, REFERENCE, TAG_PATTERN
from hfx.repository.subject import Problem, rule

EXCLUDED = ("InstanceType", "InitialInstanceCount", "InferenceAmiVersion")  # fields that a serverless variant lacks
GPU_PREFIXES = ("ml.g", "ml.p")
DEFAULT_MODEL, LOG = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "SAGEMAKER_TRITON_LOG_VERBOSE"
START_SCRIPT = "https://github.com/triton-inference-server/server/blob/main/docker/sagemaker/serve"


@rule("HFX941", "error", "Leave it out, or use instances.", f"{GUIDE}/serverless-endpoints.html")
def serverless_exclusions(files: Files) -> Iterator[Problem]:
    """What a serverless endpoint does not have."""
    for document, variant in _variants(files):
        if "ServerlessConfig" in variant:
            excluded = [key for key in EXCLUDED if key in variant]
            excluded += [key for key in ("DataCaptureConfig", "AsyncInferenceConfig") if key in document.value]
            for key in excluded:
                yield Problem(document.path, f"A serverless endpoint has no {key}.")


@rule("HFX942", "error", f"Set InferenceAmiVersion to {CUDA_13_AMI}.", f"{REFERENCE}/API_ProductionVariant.html")
def old_driver(files: Files) -> Iterator[Problem]:
    """A driver that is older than the image's CUDA."""
    tags = {tag for _, container in _models(files) if (tag := _tag(container))}
    for document, variant in _variants(files):
        is_gpu = str(variant.get("InstanceType", "")).startswith(GPU_PREFIXES) and "ServerlessConfig" not in variant
        if is_gpu and tags and max(tags) >= CUDA_13_TAG and variant.get("InferenceAmiVersion") != CUDA_13_AMI:
            yield Problem(document.path, f"Triton {max(tags)} is built for CUDA 13, whose driver the instance lacks.")


@rule("HFX943", "warning", f"Set {LOG} to false.", START_SCRIPT)
def verbose_log(files: Files) -> Iterator[Problem]:
    """A log of every request."""
    for document, container in _models(files):
        if _tag(container) and str(table(container, "Environment").get(LOG, "true")).lower() != "false":
            yield Problem(document.path, f"Triton logs every request to CloudWatch unless {LOG} is false.")


@rule("HFX944", "warning", f"Set {DEFAULT_MODEL}.", START_SCRIPT)
def unnamed_model(files: Files) -> Iterator[Problem]:
    """A container that does not say which model answers."""
    for document, container in _models(files):
        if _tag(container) and not table(container, "Environment").get(DEFAULT_MODEL):
            yield Problem(document.path, f"Without {DEFAULT_MODEL} only an archive with one model starts.")


def _variants(files: Files) -> Iterator[tuple[Document, Table]]:
    for document in files.with_key("ProductionVariants"):
        yield from ((document, variant) for variant in tables(document.value["ProductionVariants"]))


def _models(files: Files) -> Iterator[tuple[Document, Table]]:
    """Yield the containers of CreateModel."""
    for document in files.with_key("ModelName"):
        containers = [*tables([document.value.get("PrimaryContainer")]), *tables(document.value.get("Containers"))]
        yield from ((document, container) for container in containers)


def _tag(container: Table) -> str:
    """Return the Triton release of AWS's image; empty for other images."""
    image = str(container.get("Image", ""))
    match = TAG_PATTERN.search(image) if "tritonserver" in image else None
    return match[1] if match else ""
