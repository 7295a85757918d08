"""The bodies of the API calls for an endpoint, as `aws … --cli-input-json` and boto3 take them, and its role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.deploy.sagemaker.aws import CUDA_13_AMI, ECR_PATTERN, environment
from hfx.deploy.sagemaker.endpoint import Endpoint
from hfx.errors import UsageError

VARIANT = "AllTraffic"
DOWNLOAD_SECONDS = 1800  # time for an instance to fetch and unpack the archive
START_SECONDS = 900  # time after the download until /ping answers
VOLUME_FACTOR = 4  # times the size of the archive: for itself, its unpacked files, and spare room
SMALLEST_VOLUME_GB = 30
DIMENSION = "sagemaker:variant:DesiredInstanceCount"


@dataclass(frozen=True, slots=True)
class Call:
    """An API call: boto3's service, the operation as AWS names it, and the file with its body.

    `required` are the fields of the body that hfx reads again.
    """

    service: str
    operation: str
    file: str
    required: tuple[str, ...] = ()


CALLS = (
    Call("sagemaker", "CreateModel", "create-model.json", ("ModelName",)),
    Call("sagemaker", "CreateEndpointConfig", "create-endpoint-config.json", ("EndpointConfigName",)),
    Call("sagemaker", "CreateEndpoint", "create-endpoint.json", ("EndpointName", "EndpointConfigName")),
    Call(
        "application-autoscaling",
        "RegisterScalableTarget",
        "register-scalable-target.json",
        ("ResourceId", "ServiceNamespace", "ScalableDimension", "MaxCapacity"),
    ),
    Call("application-autoscaling", "PutScalingPolicy", "put-scaling-policy.json"),
)


@dataclass(frozen=True, slots=True)
class Upload:
    """An archive in the written folder, and its place in S3."""

    file: str
    uri: str
    bytes: int


def bodies(endpoint: Endpoint, version: str, uploads: tuple[Upload, ...]) -> dict[str, dict[str, Any]]:
    """Return file -> body of the call. `version` makes the names of a model and its endpoint configuration unique."""
    name = f"{endpoint.name}-{version}"
    made = {
        "create-model.json": create_model(endpoint, name, uploads),
        "create-endpoint-config.json": create_endpoint_config(endpoint, name, uploads),
        "create-endpoint.json": {"EndpointName": endpoint.name, "EndpointConfigName": name},
    }
    if endpoint.settings.max_instances is not None:
        made["register-scalable-target.json"] = register_scalable_target(endpoint)
        made["put-scaling-policy.json"] = put_scaling_policy(endpoint)
    return made


def create_model(endpoint: Endpoint, name: str, uploads: tuple[Upload, ...]) -> dict[str, Any]:
    """Return the body of CreateModel: one container, or several, of which TargetContainerHostname selects one."""
    settings = endpoint.settings
    containers = [
        {
            "Image": endpoint.image,
            "ModelDataUrl": upload.uri,
            "Environment": environment(deployment.models[0], deployment.release.tag, settings.stream),
        }
        for deployment, upload in zip(endpoint.deployments, uploads, strict=True)
    ]
    body: dict[str, Any] = {"ModelName": name, "ExecutionRoleArn": settings.role}
    if len(containers) == 1:
        body["PrimaryContainer"] = containers[0]
    else:
        hosts = endpoint.hostnames
        body["Containers"] = [{"ContainerHostname": host} | each for host, each in zip(hosts, containers, strict=True)]
        body["InferenceExecutionConfig"] = {"Mode": "Direct"}
    if settings.subnets:
        body["VpcConfig"] = {"Subnets": list(settings.subnets), "SecurityGroupIds": list(settings.security_groups)}
    return body


def create_endpoint_config(endpoint: Endpoint, name: str, uploads: tuple[Upload, ...]) -> dict[str, Any]:
    """Return the body of CreateEndpointConfig: one variant, and settings for asynchronous answers and data capture."""
    settings = endpoint.settings
    variant: dict[str, Any] = {"VariantName": VARIANT, "ModelName": name}
    if settings.serverless:
        variant["ServerlessConfig"] = {"MemorySizeInMB": endpoint.memory_mb, "MaxConcurrency": settings.concurrency}
    else:
        variant |= _instances(endpoint, sum(upload.bytes for upload in uploads))
    body: dict[str, Any] = {"EndpointConfigName": name, "ProductionVariants": [variant]}
    if settings.asynchronous:
        body["AsyncInferenceConfig"] = _asynchronous(endpoint)
    if settings.capture is not None:
        body["DataCaptureConfig"] = {
            "EnableCapture": True,
            "InitialSamplingPercentage": settings.capture,
            "DestinationS3Uri": f"{endpoint.bucket}/captured",
            "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
            "CaptureContentTypeHeader": {"JsonContentTypes": ["application/json"]},
        }
    return body


def _instances(endpoint: Endpoint, archive_bytes: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "InstanceType": endpoint.instance_type,
        "InitialInstanceCount": endpoint.settings.instances,
        "ModelDataDownloadTimeoutInSeconds": DOWNLOAD_SECONDS,
        "ContainerStartupHealthCheckTimeoutInSeconds": START_SECONDS,
    }
    if endpoint.device == "gpu":
        # GPU instances have their own disk, and refuse VolumeSizeInGB.
        return options | {"InferenceAmiVersion": endpoint.settings.ami or CUDA_13_AMI}
    gigabytes = -(-VOLUME_FACTOR * archive_bytes // 10**9)
    return options | ({"VolumeSizeInGB": gigabytes} if gigabytes > SMALLEST_VOLUME_GB else {})


def _asynchronous(endpoint: Endpoint) -> dict[str, Any]:
    output = {"S3OutputPath": f"{endpoint.bucket}/answers", "S3FailurePath": f"{endpoint.bucket}/failures"}
    config: dict[str, Any] = {"OutputConfig": output}
    if endpoint.slots:
        config["ClientConfig"] = {"MaxConcurrentInvocationsPerInstance": endpoint.slots}
    return config


def register_scalable_target(endpoint: Endpoint) -> dict[str, Any]:
    """Return the body of RegisterScalableTarget: the fewest and the most instances."""
    return _scaled(endpoint) | {
        "MinCapacity": endpoint.settings.instances,
        "MaxCapacity": endpoint.settings.max_instances,
    }


def put_scaling_policy(endpoint: Endpoint) -> dict[str, Any]:
    """Return the body of PutScalingPolicy: the target load of an instance.

    For generators, the load is the number of concurrent requests (default target: their slots). For encoders, it is the
    number of requests per minute. For asynchronous endpoints, it is the number of waiting requests.
    """
    settings = endpoint.settings
    target = settings.scale_target if settings.scale_target is not None else endpoint.slots
    tracking: dict[str, Any] = {"TargetValue": float(target)}
    if settings.asynchronous:
        tracking["CustomizedMetricSpecification"] = {
            "MetricName": "ApproximateBacklogSizePerInstance",
            "Namespace": "AWS/SageMaker",
            "Dimensions": [{"Name": "EndpointName", "Value": endpoint.name}],
            "Statistic": "Average",
        }
    else:
        load = "ConcurrentRequestsPerModelHighResolution" if endpoint.slots else "InvocationsPerInstance"
        tracking["PredefinedMetricSpecification"] = {"PredefinedMetricType": f"SageMakerVariant{load}"}
    return _scaled(endpoint) | {
        "PolicyName": f"{endpoint.name}-load",
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": tracking,
    }


def _scaled(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{endpoint.name}/variant/{VARIANT}",
        "ScalableDimension": DIMENSION,
    }


# Reading the bodies of a written folder


def read_bodies(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the bodies of the calls by the names of their files. Raises UsageError for a folder without them."""
    with readable(folder):
        calls = [call for call in CALLS if call in CALLS[:3] or (folder / call.file).exists()]
        made = {call.file: json.loads((folder / call.file).read_text("utf-8")) for call in calls}
        missing = [f"{key} in {call.file}" for call in calls for key in call.required if key not in made[call.file]]
        model = made["create-model.json"]
        missing += [key for each in containers(model) for key in ("Image", "ModelDataUrl") if key not in each]
        if missing:
            raise ValueError(f"there is no {missing[0]}")
    return made


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise UsageError for the errors of files that are missing, or have another form than hfx writes."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{folder} can't be read: {error}.", "Give a folder that `hfx deploy sagemaker` wrote."
        ) from error


def containers(model: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers in the body of CreateModel."""
    return list(model.get("Containers") or [model["PrimaryContainer"]])


# The execution role: the services that may use it, and the fewest permissions for the endpoint


NAMESPACES = ("/aws/sagemaker/Endpoints",)  # namespaces of the metrics that an instance writes
NETWORK_ACTIONS = (
    "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission", "ec2:DescribeDhcpOptions", "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs",
)  # fmt: skip


def trust(endpoint: Endpoint) -> dict[str, Any]:
    """Return the trust policy of the role: SageMaker may use it, for this account."""
    return _document(
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
            "Condition": {"StringEquals": {"aws:SourceAccount": endpoint.account}},
        }
    )


def policy(endpoint: Endpoint, uploads: tuple[Upload, ...]) -> dict[str, Any]:
    """Return the role's permissions: fetch the archives and the image, write logs and metrics, and the options' needs.

    Actions with the resource "*" do not support a narrower resource.
    """
    settings, place = endpoint.settings, f"arn:{endpoint.partition}"
    logs = f"{place}:logs:{endpoint.region}:{endpoint.account}:log-group:/aws/sagemaker/Endpoints/{endpoint.name}"
    written = [*(["captured"] if settings.capture is not None else [])]
    written += ["answers", "failures"] if settings.asynchronous else []
    statements = [
        _allow("Archives", ["s3:GetObject"], [_object(endpoint, upload.uri) for upload in uploads]),
        _allow("Image", ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"], [_repository(endpoint)]),
        _allow("Registry", ["ecr:GetAuthorizationToken"], ["*"]),
        _allow("Logs", ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"], [logs, f"{logs}:*"]),
        _allow("Metrics", ["cloudwatch:PutMetricData"], ["*"])
        | {"Condition": {"StringEquals": {"cloudwatch:namespace": list(NAMESPACES)}}},
    ]
    if settings.asynchronous:
        requests = _object(endpoint, f"{endpoint.bucket}/requests/*")
        statements.append(_allow("Requests", ["s3:GetObject"], [requests]))
    if written:
        places = [_object(endpoint, f"{endpoint.bucket}/{folder}/*") for folder in written]
        statements.append(_allow("Answers", ["s3:PutObject"], places))
    if settings.subnets:
        statements.append(_allow("Network", list(NETWORK_ACTIONS), ["*"]))
    return _document(*statements)


def _allow(name: str, actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": actions, "Resource": resources}


def _document(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _object(endpoint: Endpoint, uri: str) -> str:
    return f"arn:{endpoint.partition}:s3:::{uri.removeprefix('s3://')}"


def _repository(endpoint: Endpoint) -> str:
    image = ECR_PATTERN.fullmatch(endpoint.image)
    assert image is not None  # checked by open_endpoint
    return f"arn:{endpoint.partition}:ecr:{image['region']}:{image['account']}:repository/{image['repository']}"
