"""Endpoint: the checked values of a SageMaker endpoint. requests.py doesn't check them again."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hfx.deploy.deployment import Deployment, mib, open_deployment
from hfx.deploy.options import EndpointOptions, check_range
from hfx.deploy.sagemaker import aws
from hfx.errors import UsageError

# Options that exclude each other, with the platform's reasons.
_EXCLUSIONS = f"{aws.GUIDE}/serverless-endpoints.html (feature exclusions)"
_CONFIG = f"{aws.REFERENCE}/API_CreateEndpointConfig.html"
_ASYNC = f"{aws.REFERENCE}/API_runtime_InvokeEndpointAsync.html"
_VARIANT = f"{aws.REFERENCE}/API_ProductionVariant.html"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two options that can't be combined, and the reason."""

    first: str
    second: str
    reason: str
    source: str


CONFLICTS = (
    Conflict("--serverless", "--device gpu", "serverless endpoints have no GPU", _EXCLUSIONS),
    Conflict("--serverless", "--arch arm64", "a serverless endpoint has no choice of processors", _VARIANT),
    Conflict("--serverless", "--capture", "serverless endpoints capture no data", _EXCLUSIONS),
    Conflict("--serverless", "--subnet", "serverless endpoints are in no VPC", _EXCLUSIONS),
    Conflict("--serverless", "several models", "a serverless endpoint has one container and one model", _EXCLUSIONS),
    Conflict("--serverless", "--async", "an endpoint is either of them", _CONFIG),
    Conflict("--serverless", "--instance-type", "the platform chooses where a serverless endpoint runs", _VARIANT),
    Conflict("--serverless", "--budget", "a serverless endpoint has no price per hour", _VARIANT),
    Conflict("--serverless", "--ami", "a serverless endpoint has no instances", _VARIANT),
    Conflict("--serverless", "--max-instances", "a serverless endpoint scales up to --concurrency by itself", _VARIANT),
    Conflict("--async", "--stream", "an asynchronous answer is one object in S3", _ASYNC),
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


# The endpoint


ROLE_PATTERN = re.compile(r"arn:(?P<partition>aws[a-z-]*):iam::(?P<account>\d{12}):role/[A-Za-z0-9+=,.@/_-]{1,512}")
S3_PATTERN = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9!_.*'()-]+)*")
ID_PATTERNS = {"--subnet": re.compile(r"subnet-[0-9a-f]{8,17}"), "--security-group": re.compile(r"sg-[0-9a-f]{8,17}")}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A checked endpoint: one deployment for each model, each deployment in its own container.

    `bucket` is an S3 URI without a slash at its end. For a serverless endpoint, `instance_type` is empty and
    `memory_mb` is set; otherwise `memory_mb` is 0.
    """

    name: str
    deployments: tuple[Deployment, ...]
    settings: EndpointOptions
    image: str
    region: str
    bucket: str
    instance_type: str
    memory_mb: int
    price: aws.Price | None

    @property
    def mode(self) -> str:
        """The kind of endpoint that decides the limits of calls: a key of CALL_LIMITS."""
        return "serverless" if self.settings.serverless else "async" if self.settings.asynchronous else "real-time"

    @property
    def device(self) -> str:
        """The device of every model."""
        return self.deployments[0].device

    @property
    def partition(self) -> str:
        """The partition of the endpoint's ARNs, such as aws or aws-cn."""
        return _match(ROLE_PATTERN, self.settings.role)["partition"]

    @property
    def account(self) -> str:
        """The account of the role."""
        return _match(ROLE_PATTERN, self.settings.role)["account"]

    @property
    def hostnames(self) -> list[str]:
        """The models' names as hostnames, by which callers choose among several containers."""
        return [each.name for each in self.deployments]

    @property
    def slots(self) -> int:
        """The number of slots of all generators together; 0 if a model is not a generator."""
        needs = [each.models[0].needs.slots for each in self.deployments]
        return sum(needs) if all(needs) else 0


def open_endpoint(deployment: Deployment, image: str, settings: EndpointOptions) -> Endpoint:
    """Return the endpoint for the models of `deployment`. `image` is a URI in ECR (empty: AWS's image in the region).

    Raises UsageError for values that SageMaker refuses, with AWS's documentation as the source.
    """
    refuse_conflicts(_given(deployment, settings))
    if not ROLE_PATTERN.fullmatch(settings.role):
        reason = f"{settings.role!r} is not a role" if settings.role else "--role is missing"
        raise UsageError(
            f"{reason}. SageMaker reads the archive and runs the endpoint with this role.",
            "Give --role arn:aws:iam::ACCOUNT:role/NAME.",
        )
    if not image and not settings.region:
        raise UsageError("The region is not known.", "Give --region, or --image with the URI of an image in ECR.")
    image = image or aws.image_of(settings.region, deployment.release.tag, deployment.arch)
    registry = _registry(image, settings.region)
    deployments = tuple(_alone(deployment, index) for index in range(len(deployment.models)))
    price = _chosen_price(deployments, registry["region"], settings)
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
    bucket = (settings.bucket or default).rstrip("/")
    if len(bucket) > 400 or not S3_PATTERN.fullmatch(bucket):
        raise UsageError(f"{bucket!r} is not an S3 location.", "Give --bucket s3://BUCKET/PREFIX.")
    return replace(endpoint, bucket=bucket)


def _given(deployment: Deployment, settings: EndpointOptions) -> set[str]:
    """Return the options and conditions of CONFLICTS that apply."""
    requested = {
        "--serverless": settings.serverless,
        "--async": settings.asynchronous,
        "--stream": settings.stream,
        "--device gpu": deployment.device == "gpu",
        "--arch arm64": deployment.arch == "arm64",
        "--capture": settings.capture is not None,
        "--subnet": settings.subnets,
        "several models": len(deployment.models) > 1,
        "--instance-type": settings.instance_type,
        "--budget": settings.budget is not None,
        "--ami": settings.ami,
        "--max-instances": settings.max_instances is not None,
    }
    return {option for option, value in requested.items() if value}


def _alone(deployment: Deployment, index: int) -> Deployment:
    """Return the deployment of one of several models, with only its part of the memory."""
    if len(deployment.models) == 1:
        return deployment
    return open_deployment(
        deployment.repository,
        [deployment.models[index].name],
        device=deployment.device,
        arch=deployment.arch,
        triton=deployment.release.tag,
        drain=deployment.drain,
    )


def _registry(image: str, region: str) -> re.Match[str]:
    match = aws.ECR_PATTERN.fullmatch(image)
    if match is None:
        raise UsageError(
            f"{image!r} is not in Amazon ECR, where SageMaker takes images from.",
            "Push it there: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG. "
            f"Source: {aws.REFERENCE}/API_ContainerDefinition.html",
        )
    if region and match["region"] != region:
        raise UsageError(
            f"The image is in {match['region']}, the endpoint in {region}.",
            f"Push the image to the endpoint's region. Source: {aws.REFERENCE}/API_ContainerDefinition.html",
        )
    return match


def _chosen_price(deployments: tuple[Deployment, ...], region: str, settings: EndpointOptions) -> aws.Price | None:
    """Return the price of the chosen instance, or of the cheapest within the budget; None without a price file."""
    if settings.budget is not None and settings.prices is None:
        raise UsageError("--budget needs prices, and hfx has none.", "Give --prices FILE, or --instance-type.")
    if settings.prices is None or settings.serverless:
        return None
    prices = aws.read_prices(settings.prices, region)
    if settings.budget is not None:
        return aws.cheapest(prices, deployments, settings.budget / max(settings.instances, 1))
    return prices.get(settings.instance_type)


def _serverless_memory(deployment: Deployment, settings: EndpointOptions) -> int:
    """Return the memory in MB: --memory-mb, or the smallest size that holds the estimated memory."""
    sizes = ", ".join(map(str, aws.SERVERLESS_MEMORY))
    if settings.memory_mb is not None:
        if settings.memory_mb not in aws.SERVERLESS_MEMORY:
            raise UsageError(f"Serverless endpoints have no {settings.memory_mb} MB of memory.", f"Choose {sizes}.")
        return settings.memory_mb
    needed = deployment.memory.value
    for size in aws.SERVERLESS_MEMORY:
        if size << 20 >= needed:
            return size
    raise UsageError(
        f"{deployment.names[0]!r} needs {mib(needed)} of memory; "
        f"a serverless endpoint has {aws.SERVERLESS_MEMORY[-1]} MB.",
        "Use --instance-type, export it with int8 weights, or say --memory-mb 6144 if you have measured less.",
    )


def _check(endpoint: Endpoint) -> None:
    settings = endpoint.settings
    if not settings.serverless:
        if not endpoint.instance_type:
            raise UsageError("No instance is chosen.", "Give --instance-type, --budget with --prices, or --serverless.")
        aws.check_instance_type(endpoint.instance_type, endpoint.device, endpoint.deployments[0].arch)
        _check_ami(endpoint)
    if len(endpoint.deployments) > aws.CONTAINERS:
        raise UsageError(f"An endpoint has at most {aws.CONTAINERS} containers.", "Deploy fewer models.")
    if len(set(endpoint.hostnames)) < len(endpoint.deployments):
        raise UsageError("Two models would have the same hostname.", "Publish one of them under another NAME.")
    if settings.security_groups and not settings.subnets:
        raise UsageError("--security-group is of a VPC.", "Give --subnet too.")
    if settings.subnets and not settings.security_groups:
        raise UsageError("--subnet needs a security group.", "Give --security-group too.")
    _check_ids("--subnet", settings.subnets)
    _check_ids("--security-group", settings.security_groups)
    check_range("--instances", settings.instances, 1, aws.INSTANCES)
    check_range("--max-instances", settings.max_instances, settings.instances, aws.INSTANCES)
    check_range("--capture", settings.capture, 1, 100)
    check_range("--concurrency", settings.concurrency, 1, aws.SERVERLESS_CONCURRENCY)
    check_range("--scale-target", settings.scale_target, 1e-3, 1e6)
    if settings.max_instances is not None and settings.scale_target is None and not endpoint.slots:
        raise UsageError(
            "--max-instances needs the load at which to add an instance.",
            "Measure it with `hfx perf run`, and give the requests of an instance a minute as --scale-target.",
        )


def _check_ami(endpoint: Endpoint) -> None:
    ami = endpoint.settings.ami
    if ami and endpoint.device == "cpu":
        raise UsageError("--ami chooses the driver of GPU instances.", "Leave it out, or use --device gpu.")
    if ami and ami != aws.CUDA_13_AMI:
        raise UsageError(
            f"--ami {ami} has a driver older than CUDA 13 needs, which the image and onnxruntime-gpu are built for.",
            f"Use {aws.CUDA_13_AMI} (the default). Source: {_VARIANT}",
        )


def _check_ids(option: str, values: Sequence[str]) -> None:
    for value in values:
        if not ID_PATTERNS[option].fullmatch(value):
            raise UsageError(f"{option} {value!r} is not an identifier of AWS.", "Copy it from the VPC console.")


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    assert match is not None  # checked by open_endpoint
    return match
