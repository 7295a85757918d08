"""What SageMaker can't do, as data: options that exclude each other, and the bounds of a call, each with its source."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hfx.errors import UsageError

GUIDE = "https://docs.aws.amazon.com/sagemaker/latest/dg"
REFERENCE = "https://docs.aws.amazon.com/sagemaker/latest/APIReference"
_EXCLUSIONS = f"{GUIDE}/serverless-endpoints.html (feature exclusions)"
_VARIANT = f"{REFERENCE}/API_ProductionVariant.html"

CUDA_13_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"  # driver 580; the other images of instances have 550 or older


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two options that can't be combined, as they are typed."""

    first: str
    second: str
    reason: str
    source: str


CONFLICTS = (
    Conflict("--serverless", "--device gpu", "serverless endpoints have no GPU", _EXCLUSIONS),
    Conflict("--serverless", "--capture", "serverless endpoints capture no data", _EXCLUSIONS),
    Conflict("--serverless", "--subnet", "serverless endpoints are in no VPC", _EXCLUSIONS),
    Conflict("--serverless", "several models", "a serverless endpoint has one container and one model", _EXCLUSIONS),
    Conflict("--serverless", "--async", "an endpoint is either of them", f"{REFERENCE}/API_CreateEndpointConfig.html"),
    Conflict("--serverless", "--instance-type", "the platform chooses where a serverless endpoint runs", _VARIANT),
    Conflict("--serverless", "--budget", "a serverless endpoint has no price per hour", _VARIANT),
    Conflict("--serverless", "--ami", "a serverless endpoint has no instances", _VARIANT),
    Conflict(
        "--serverless", "--max-instances", "a serverless endpoint scales by itself, up to --concurrency", _VARIANT
    ),
    Conflict(
        "--async",
        "--stream",
        "an asynchronous answer is one object in S3",
        f"{REFERENCE}/API_runtime_InvokeEndpointAsync.html",
    ),
    Conflict("--instance-type", "--budget", "either the type is chosen or its price", "hfx"),
)


def refuse_conflicts(given: Collection[str]) -> None:
    """Raise UsageError for the first pair of `given` options that can't be combined."""
    for conflict in CONFLICTS:
        if conflict.first in given and conflict.second in given:
            raise UsageError(
                f"{conflict.first} and {conflict.second} can't be combined: {conflict.reason}.",
                f"Leave one of them out. Source: {conflict.source}",
            )


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one call may take: bytes of a request's body, seconds until its answer is complete."""

    body_bytes: int
    seconds: int
    source: str


CALL_LIMITS = {
    "real-time": CallLimits(6_291_456, 60, f"{REFERENCE}/API_runtime_InvokeEndpoint.html"),
    "serverless": CallLimits(4 << 20, 60, f"{GUIDE}/serverless-endpoints-invoke.html"),
    "async": CallLimits(1 << 30, 3600, f"{GUIDE}/async-inference.html"),
}
SERVERLESS_MEMORY = tuple(range(1024, 6144 + 1, 1024))  # MB; ProductionVariantServerlessConfig
SERVERLESS_CONCURRENCY = 200
SERVERLESS_START_SECONDS = 180  # until /ping answers, the download of the model included (serverless-endpoints-invoke)
CONTAINERS = 15  # of one endpoint, multi-container-create.html
INSTANCES = 1000
