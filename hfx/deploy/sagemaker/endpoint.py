"""What is deployed to SageMaker, as one frozen value: nothing of it is checked again by the requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hfx.deploy.deployment import Deployment, mib, open_deployment
from hfx.deploy.sagemaker.container import image_of
from hfx.deploy.sagemaker.instances import Price, cheapest, check_instance_type, read_prices
from hfx.deploy.sagemaker.limits import (
    CONTAINERS,
    CUDA_13_AMI,
    INSTANCES,
    SERVERLESS_CONCURRENCY,
    SERVERLESS_MEMORY,
    refuse_conflicts,
)
from hfx.errors import UsageError

ROLE_PATTERN = re.compile(r"arn:(?P<partition>aws[a-z-]*):iam::(?P<account>\d{12}):role/[A-Za-z0-9+=,.@/_-]{1,512}")
ECR_PATTERN = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<repository>[^:@]+)(?:[:@].*)?"
)
S3_PATTERN = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9!_.*'()-]+)*")
ID_PATTERNS = {"--subnet": re.compile(r"subnet-[0-9a-f]{8,17}"), "--security-group": re.compile(r"sg-[0-9a-f]{8,17}")}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user chooses; an empty text, list or None is "not given".

    `capture` is in percent, `memory_mb` and `concurrency` a serverless endpoint's, `scale_target` the load of an
    instance that autoscaling holds.
    """

    role: str = ""
    region: str = ""
    bucket: str = ""
    serverless: bool = False
    asynchronous: bool = False
    stream: bool = False
    instance_type: str = ""
    instances: int = 1
    max_instances: int | None = None
    scale_target: float | None = None
    memory_mb: int | None = None
    concurrency: int = 5
    capture: int | None = None
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    ami: str = ""
    budget: float | None = None
    prices: Path | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A checked endpoint: one deployment for each model, each in a container of its own.

    `bucket` is an S3 URI without a slash at its end, `instance_type` is empty and `memory_mb` set for a serverless one.
    """

    name: str
    deployments: tuple[Deployment, ...]
    settings: Settings
    image: str
    region: str
    bucket: str
    instance_type: str
    memory_mb: int
    price: Price | None

    @property
    def mode(self) -> str:
        """The key of CALL_LIMITS."""
        return "serverless" if self.settings.serverless else "async" if self.settings.asynchronous else "real-time"

    @property
    def device(self) -> str:
        """The device of every model."""
        return self.deployments[0].device

    @property
    def partition(self) -> str:
        """The partition of its ARNs, such as aws or aws-cn."""
        return _match(ROLE_PATTERN, self.settings.role)["partition"]

    @property
    def account(self) -> str:
        """The account of the role."""
        return _match(ROLE_PATTERN, self.settings.role)["account"]

    @property
    def hostnames(self) -> list[str]:
        """How callers name the containers where there are several: the models' names, as a hostname can hold them."""
        return [each.name for each in self.deployments]

    @property
    def slots(self) -> int:
        """The slots of its generators together; 0 when one of its models has no engine."""
        needs = [each.models[0].needs.slots for each in self.deployments]
        return sum(needs) if all(needs) else 0


def open_endpoint(deployment: Deployment, image: str, settings: Settings) -> Endpoint:
    """The endpoint of the models of `deployment`; `image` is a URI in ECR, or empty for AWS's own in the region.

    Raises UsageError for what SageMaker does not take, with the source.
    """
    refuse_conflicts(_given(deployment, settings))
    if not ROLE_PATTERN.fullmatch(settings.role):
        raise UsageError(f"{settings.role!r} is no role.", "Give --role arn:aws:iam::ACCOUNT:role/NAME.")
    if not image and not settings.region:
        raise UsageError("The region is not known.", "Give --region, or --image with the URI of an image in ECR.")
    image = image or image_of(settings.region, deployment.release.tag)
    registry = _registry(image, settings.region)
    deployments = tuple(_alone(deployment, index) for index in range(len(deployment.models)))
    price = _price(deployments, registry["region"], settings)
    endpoint = Endpoint(
        name=deployment.name,
        deployments=deployments,
        settings=settings,
        image=image,
        region=registry["region"],
        bucket="",
        instance_type=price.instance_type if price and not settings.instance_type else settings.instance_type,
        memory_mb=_serverless_memory(deployment, settings) if settings.serverless else 0,
        price=price,
    )
    _check(endpoint)
    default = f"s3://sagemaker-{endpoint.region}-{endpoint.account}/{endpoint.name}"
    return replace(endpoint, bucket=_s3((settings.bucket or default).rstrip("/")))


def _given(deployment: Deployment, settings: Settings) -> set[str]:
    """The keys of CONFLICTS that are given."""
    asked = {
        "--serverless": settings.serverless,
        "--async": settings.asynchronous,
        "--stream": settings.stream,
        "--device gpu": deployment.device == "gpu",
        "--capture": settings.capture is not None,
        "--subnet": settings.subnets,
        "several models": len(deployment.models) > 1,
        "--instance-type": settings.instance_type,
        "--budget": settings.budget is not None,
        "--ami": settings.ami,
        "--max-instances": settings.max_instances is not None,
    }
    return {option for option, value in asked.items() if value}


def _alone(deployment: Deployment, index: int) -> Deployment:
    """The deployment of one model, with its own part of the memory."""
    if len(deployment.models) == 1:
        return deployment
    return open_deployment(
        deployment.repository,
        [deployment.models[index].name],
        device=deployment.device,
        triton=deployment.release.tag,
        drain=deployment.drain,
    )


def _registry(image: str, region: str) -> re.Match[str]:
    match = ECR_PATTERN.fullmatch(image)
    if match is None:
        raise UsageError(
            f"{image!r} is not in Amazon ECR, where SageMaker takes images from.",
            "Push it there: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG. "
            "Source: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ContainerDefinition.html",
        )
    if region and match["region"] != region:
        raise UsageError(
            f"The image is in {match['region']}, the endpoint in {region}.",
            "Push the image to the endpoint's region. "
            "Source: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ContainerDefinition.html",
        )
    return match


def _price(deployments: tuple[Deployment, ...], region: str, settings: Settings) -> Price | None:
    """The price of the chosen instance, or the instance that a budget buys; None without a price file."""
    if settings.budget is not None and settings.prices is None:
        raise UsageError("--budget needs prices, and hfx has none.", "Give --prices FILE, or --instance-type.")
    if settings.prices is None or settings.serverless:
        return None
    prices = read_prices(settings.prices, region)
    if settings.budget is not None:
        return cheapest(prices, deployments, settings.budget / max(settings.instances, 1))
    return prices.get(settings.instance_type)


def _serverless_memory(deployment: Deployment, settings: Settings) -> int:
    """The memory in MB: as asked for, or the smallest size that holds the estimate."""
    sizes = ", ".join(map(str, SERVERLESS_MEMORY))
    if settings.memory_mb is not None:
        if settings.memory_mb not in SERVERLESS_MEMORY:
            raise UsageError(f"Serverless endpoints have no {settings.memory_mb} MB of memory.", f"Choose {sizes}.")
        return settings.memory_mb
    needed = deployment.memory.value
    for size in SERVERLESS_MEMORY:
        if size << 20 >= needed:
            return size
    raise UsageError(
        f"{deployment.names[0]!r} needs {mib(needed)} of memory; a serverless endpoint has {SERVERLESS_MEMORY[-1]} MB.",
        "Use --instance-type, export it with int8 weights, or say --memory-mb 6144 if you have measured less.",
    )


def _check(endpoint: Endpoint) -> None:
    settings = endpoint.settings
    if not settings.serverless:
        if not endpoint.instance_type:
            raise UsageError("No instance is chosen.", "Give --instance-type, --budget with --prices, or --serverless.")
        check_instance_type(endpoint.instance_type, endpoint.device)
        _check_ami(endpoint)
    if len(endpoint.deployments) > CONTAINERS:
        raise UsageError(f"An endpoint has at most {CONTAINERS} containers.", "Deploy fewer models.")
    if len(set(endpoint.hostnames)) < len(endpoint.deployments):
        raise UsageError("Two models would have the same hostname.", "Publish one of them under another NAME.")
    if settings.security_groups and not settings.subnets:
        raise UsageError("--security-group is of a VPC.", "Give --subnet too.")
    if settings.subnets and not settings.security_groups:
        raise UsageError("--subnet needs a security group.", "Give --security-group too.")
    _check_ids("--subnet", settings.subnets)
    _check_ids("--security-group", settings.security_groups)
    _check_numbers(settings)
    if settings.max_instances is not None and settings.scale_target is None and not endpoint.slots:
        raise UsageError(
            "--max-instances needs the load at which to add an instance.",
            "Measure it with `hfx perf run`, and give the requests of an instance a minute as --scale-target.",
        )


def _check_ami(endpoint: Endpoint) -> None:
    ami = endpoint.settings.ami
    if ami and endpoint.device == "cpu":
        raise UsageError("--ami chooses the driver of GPU instances.", "Leave it out, or use --device gpu.")
    if ami and ami != CUDA_13_AMI:
        raise UsageError(
            f"--ami {ami} has a driver older than CUDA 13 needs, which the image and onnxruntime-gpu are built for.",
            f"Use {CUDA_13_AMI} (the default). "
            "Source: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ProductionVariant.html",
        )


def _check_ids(option: str, values: Sequence[str]) -> None:
    for value in values:
        if not ID_PATTERNS[option].fullmatch(value):
            raise UsageError(f"{option} {value!r} is no identifier of AWS.", "Copy it from the VPC console.")


def _check_numbers(settings: Settings) -> None:
    most = settings.max_instances if settings.max_instances is not None else settings.instances
    bounds = {
        "--instances": (settings.instances, 1, INSTANCES),
        "--max-instances": (most, settings.instances, INSTANCES),
        "--capture": (1 if settings.capture is None else settings.capture, 1, 100),
        "--concurrency": (settings.concurrency, 1, SERVERLESS_CONCURRENCY),
        "--scale-target": (1 if settings.scale_target is None else settings.scale_target, 1e-3, 1e6),
    }
    for option, (value, low, high) in bounds.items():
        if not low <= value <= high:
            raise UsageError(f"{option} {value} is out of range.", f"Choose {low} to {high}.")


def _s3(uri: str) -> str:
    if len(uri) > 400 or not S3_PATTERN.fullmatch(uri):
        raise UsageError(f"{uri!r} is no place in S3.", "Give --bucket s3://BUCKET/PREFIX.")
    return uri


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    assert match is not None  # checked by open_endpoint
    return match
