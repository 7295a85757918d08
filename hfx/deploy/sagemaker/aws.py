"""Facts about SageMaker: instance types and prices, limits of a call, AWS's Triton image and its start script.

The script is docker/sagemaker/serve of triton-inference-server/server (read at commit 7f5070c6). It accepts further
arguments in SAGEMAKER_TRITON_ADDITIONAL_ARGS. It starts tritonserver without HTTP, gRPC and metrics; port 8080 has
/ping and /invocations, where only the default model answers.

hfx ships no prices, because they differ by region and change. A price file is JSON:

    {"source": "…", "date": "2026-11-01", "region": "eu-west-1", "currency": "USD",
     "instances": {"ml.c7i.xlarge": {"price": 0.2, "vcpus": 4, "memory_gib": 8, "gpus": 0}}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.deploy.deployment import DeployedModel, Deployment, mib
from hfx.deploy.options import Arch
from hfx.errors import UsageError
from hfx.names import STREAM_SUFFIX
from hfx.triton.arguments import CONTAINER_SECONDS

GUIDE = "https://docs.aws.amazon.com/sagemaker/latest/dg"
REFERENCE = "https://docs.aws.amazon.com/sagemaker/latest/APIReference"
CUDA_13_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"  # driver 580; the other AMIs have 550 or older
ECR_PATTERN = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<repository>[^:@]+)(?:[:@].*)?"
)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of one call: bytes of the body, and seconds until the answer is complete."""

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
SERVERLESS_START_SECONDS = 180  # time until /ping answers, with the download of the model (serverless-endpoints-invoke)
CONTAINERS = 15  # the most containers of one endpoint, multi-container-create.html
INSTANCES = 1000


# Instances and their prices


INSTANCE_PATTERN = re.compile(r"ml\.(?P<family>[a-z]+)(?P<generation>\d+)(?P<features>[a-z]*)\.(?P<size>[a-z0-9]+)")
GPU_FAMILIES = {"g", "p"}
# Elastic Inference ended in April 2023. The wheels of ONNX Runtime don't run on the other chips.
OTHER_CHIPS = {"eia": "Elastic Inference has ended", "inf": "Inferentia runs Neuron models", "trn": "as Inferentia"}
GRAVITON = "g"  # this letter among the features means Arm processors


def arch_of(instance_type: str) -> Arch:
    """Return the processor of an instance type; amd64 for other texts, as AWS's own image is for it."""
    match = INSTANCE_PATTERN.fullmatch(instance_type)
    return "arm64" if match and GRAVITON in match["features"] else "amd64"


def check_instance_type(name: str, device: str, arch: Arch) -> str:
    """Return `name`. Raises UsageError if this instance type can't run a bundle for `device` and `arch`."""
    match = INSTANCE_PATTERN.fullmatch(name)
    if match is None:
        raise UsageError(f"{name!r} is not an instance type.", "Give one like ml.c7i.xlarge.")
    family, own = match["family"], arch_of(name)
    if family in OTHER_CHIPS:
        raise UsageError(f"{name} can't run ONNX models: {OTHER_CHIPS[family]}.", "Choose a CPU or NVIDIA type.")
    if own != arch:
        raise UsageError(f"{name} has {own} processors, not {arch}.", f"Use --arch {own}, or choose another type.")
    if device == "gpu" and family not in GPU_FAMILIES:
        raise UsageError(f"{name} has no GPU.", "Choose one of ml.g or ml.p, or use --device cpu.")
    return name


@dataclass(frozen=True, slots=True)
class Price:
    """The price of an instance per hour, and its resources. `source` says where the price is from, and its date."""

    instance_type: str
    hourly: float
    currency: str
    vcpus: int
    memory_bytes: int
    gpus: int
    source: str


def read_prices(path: Path, region: str) -> dict[str, Price]:
    """Return instance type -> price, from a file.

    Raises UsageError if the file is not a price file, or is for another region.
    """
    try:
        table = json.loads(path.read_text("utf-8"))
        head = {key: _text(table[key]) for key in ("source", "date", "region", "currency")}
        source = f"{head['source']}, {head['date']}"
        prices = {name: _price(name, row, head["currency"], source) for name, row in table["instances"].items()}
    except (OSError, KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{path} is not a price file: {error!r}.", "docs/deploy-sagemaker.md has its form.") from error
    if head["region"] != region:
        raise UsageError(f"{path} has the prices of {head['region']}, not of {region}.", "Give those of the region.")
    return prices


def _price(name: str, row: dict[str, Any], currency: str, source: str) -> Price:
    hourly = float(row["price"])
    if not 0 < hourly < 1e6:
        raise ValueError(f"price {hourly}")
    memory = int(row["memory_gib"] * (1 << 30))
    return Price(name, hourly, currency, int(row["vcpus"]), memory, int(row["gpus"]), source)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a text")
    return value


def cheapest(prices: dict[str, Price], deployments: tuple[Deployment, ...], budget: float) -> Price:
    """Return the cheapest instance that can hold all `deployments` and costs at most `budget` per hour.

    Raises UsageError if there is none.
    """
    device, arch = deployments[0].device, deployments[0].arch
    cpus = max(each.cpus.value for each in deployments)
    memory = sum(each.memory.value for each in deployments)
    fitting = [
        price
        for price in prices.values()
        if price.vcpus >= cpus and price.memory_bytes >= memory and _can_run(price, device, arch)
    ]
    needed = f"{cpus} {arch} processors, {mib(memory)} of memory" + (" and a GPU" if device == "gpu" else "")
    if not fitting:
        raise UsageError(f"No instance of the price file has {needed}.", "Add one to it, or give --instance-type.")
    best = min(fitting, key=lambda price: (price.hourly, price.instance_type))
    if best.hourly > budget:
        raise UsageError(
            f"The cheapest instance with {needed} is {best.instance_type}: {best.hourly:g} {best.currency} an hour.",
            "Raise --budget, or export a smaller model.",
        )
    return best


def _can_run(price: Price, device: str, arch: Arch) -> bool:
    try:
        check_instance_type(price.instance_type, device, arch)
    except UsageError:
        return False
    return device == "cpu" or price.gpus > 0


# AWS's Triton image

TAG_PATTERN = re.compile(r":(\d\d\.\d\d)-py3")
MODEL_FOLDER = "/opt/ml/model/"
PORT = 8080
NEWEST_TAG = "26.05"  # the newest tag of AWS's images
INFERENCE_TYPE_TAG = "25.03"  # from this tag on, /invocations can be Triton's /generate
IMAGE_ARCH = "amd64"  # AWS's images for Graviton are of other frameworks, in repositories of their own
ACCOUNT = "763104351884"
# Regions in which an account other than ACCOUNT has the image: image_uri_config/sagemaker-tritonserver.json of
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


def image_of(region: str, tag: str, arch: Arch) -> str:
    """Return AWS's Triton image of the release `tag` for `arch` in `region`. Raises UsageError if there is none."""
    if region not in REGIONAL_ACCOUNTS and region not in COMMON_REGIONS:
        raise UsageError(f"hfx knows no Triton image of AWS in {region!r}.", "Give its URI with --image.")
    own = "--image with an image of your own that has AWS's start script"
    if arch != IMAGE_ARCH:
        raise UsageError(f"hfx knows no Triton image of AWS for {arch}.", f"Use {own}, or --arch {IMAGE_ARCH}.")
    if tag > NEWEST_TAG:
        raise UsageError(f"AWS has no image of Triton {tag}.", f"Use --triton {NEWEST_TAG}, its newest, or {own}.")
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    account = REGIONAL_ACCOUNTS.get(region, ACCOUNT)
    return f"{account}.dkr.ecr.{region}.{domain}/sagemaker-tritonserver:{tag}-py3"


def tag_of(image: str) -> str:
    """Return the Triton release in the tag of `image` (empty: AWS's newest). Raises UsageError for other tags."""
    if not image:
        return NEWEST_TAG
    match = TAG_PATTERN.search(image)
    if match is None:
        raise UsageError(f"The Triton release of {image} is not known.", "Give it with --triton.")
    return match[1]


def environment(model: DeployedModel, tag: str, stream: bool) -> dict[str, str]:
    """Return the environment variables of the container that serves `model`. With `stream`, it answers token by token.

    Triton loads the default model and the members of an ensemble by itself; a generator's engine must be named. Raises
    UsageError if the model or the image can't stream.
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
    """Return the arguments that the start script gives tritonserver for the `variables` of `environment`."""
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
