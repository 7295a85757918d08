"""AWS's Triton image: the environment that it gets, and the tritonserver arguments that its start script makes of it.

The script is docker/sagemaker/serve of triton-inference-server/server (read at commit 7f5070c6). It is not ours to
change: what hfx needs beyond it goes through SAGEMAKER_TRITON_ADDITIONAL_ARGS. It starts tritonserver without HTTP,
gRPC and metrics; port 8080 has /ping and /invocations, and only the default model answers there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hfx.deploy.deployment import DeployedModel
from hfx.errors import UsageError
from hfx.names import STREAM_SUFFIX
from hfx.triton.arguments import CONTAINER_SECONDS

TAG_PATTERN = re.compile(r":(\d\d\.\d\d)-py3")
MODEL_FOLDER = "/opt/ml/model/"
PORT = 8080
NEWEST_TAG = "26.05"  # of AWS's images
INFERENCE_TYPE_TAG = "25.03"  # from here on /invocations can be Triton's /generate
ACCOUNT = "763104351884"
# AWS's accounts that hold the image, where it isn't ACCOUNT: image_uri_config/sagemaker-tritonserver.json of
# aws/sagemaker-python-sdk.
REGIONAL_ACCOUNTS = {
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-northeast-3": "364406365360",
    "ap-southeast-3": "907027046896",
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-south-1": "692866216735",
    "il-central-1": "780543022126",
    "me-south-1": "217643126080",
}
COMMON_REGIONS = (
    *("ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2", "ca-central-1"),
    *("eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "eu-west-3", "sa-east-1"),
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2"),
)


def image_of(region: str, tag: str) -> str:
    """AWS's Triton image of the release `tag` in `region`; UsageError for a region or release without one."""
    if region not in REGIONAL_ACCOUNTS and region not in COMMON_REGIONS:
        raise UsageError(f"hfx knows no Triton image of AWS in {region!r}.", "Give its URI with --image.")
    if tag > NEWEST_TAG:
        raise UsageError(
            f"AWS has no image of Triton {tag}; {NEWEST_TAG} is its newest.",
            f"Use --triton {NEWEST_TAG}, or --image with an image of your own that has AWS's start script.",
        )
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    account = REGIONAL_ACCOUNTS.get(region, ACCOUNT)
    return f"{account}.dkr.ecr.{region}.{domain}/sagemaker-tritonserver:{tag}-py3"


def tag_of(image: str) -> str:
    """The Triton release of `image` by its tag; AWS's newest without an image. Raises UsageError for another tag."""
    if not image:
        return NEWEST_TAG
    match = TAG_PATTERN.search(image)
    if match is None:
        raise UsageError(f"The Triton release of {image} is not known.", "Give it with --triton.")
    return match[1]


def environment(model: DeployedModel, tag: str, stream: bool) -> dict[str, str]:
    """The environment variables of the container that serves `model`; with `stream` it answers token by token.

    Explicit control loads the default model and an ensemble's members; a generator's engine must be named.
    Raises UsageError for an image that can't do it.
    """
    added = ["--disable-auto-complete-config", f"--backend-config=python,stub-timeout-seconds={CONTAINER_SECONDS[0]}"]
    added += [f"--load-model={folder}" for folder in model.manifest.folders if folder.endswith(STREAM_SUFFIX)]
    variables = {
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": model.name,
        "SAGEMAKER_TRITON_LOG_VERBOSE": "false",  # the script's own default logs every request
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": " ".join(added),
    }
    if stream:
        _check_stream(model, tag)
        variables["SAGEMAKER_TRITON_INFERENCE_TYPE"] = "generate_stream"
    elif model.is_generator and tag >= INFERENCE_TYPE_TAG:
        variables["SAGEMAKER_TRITON_INFERENCE_TYPE"] = "generate"
    return variables


def _check_stream(model: DeployedModel, tag: str) -> None:
    if not model.is_generator:
        raise UsageError(f"{model.name!r} answers in one pass; there is nothing to stream.", "Leave out --stream.")
    if tag < INFERENCE_TYPE_TAG:
        raise UsageError(f"The image of Triton {tag} can't stream.", f"Use --triton {INFERENCE_TYPE_TAG} or later.")


def server_arguments(variables: Mapping[str, str], repository: str = MODEL_FOLDER) -> list[str]:
    """What the start script calls tritonserver with, for the environment `variables` of `environment`."""
    return [
        "--allow-sagemaker=true",
        "--allow-http=false",
        "--model-control-mode=explicit",
        f"--model-repository={repository}",
        "--model-namespacing=true",
        "--allow-grpc=false",
        "--allow-metrics=false",
        f"--log-verbose={variables['SAGEMAKER_TRITON_LOG_VERBOSE']}",
        "--backend-config=python,shm-default-byte-size=16777216",
        "--backend-config=python,shm-growth-byte-size=1048576",
        *variables["SAGEMAKER_TRITON_ADDITIONAL_ARGS"].split(),
        f"--load-model={variables['SAGEMAKER_TRITON_DEFAULT_MODEL_NAME']}",
    ]
