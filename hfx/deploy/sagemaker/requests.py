"""The bodies of the API calls that make an endpoint, as `aws … --cli-input-json` and boto3 take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hfx.deploy.sagemaker.container import environment
from hfx.deploy.sagemaker.endpoint import Endpoint
from hfx.deploy.sagemaker.limits import CUDA_13_AMI

VARIANT = "AllTraffic"
DOWNLOAD_SECONDS = 1800  # that an instance may take to fetch and unpack the archive
START_SECONDS = 900  # until /ping answers, after that
VOLUME_FACTOR = 4  # the archive, what it unpacks to, and room
SMALLEST_VOLUME_GB = 30
DIMENSION = "sagemaker:variant:DesiredInstanceCount"


@dataclass(frozen=True, slots=True)
class Call:
    """An API call: boto3's service, the operation as in the service model, where its body lies in the folder."""

    service: str
    operation: str
    file: str


CALLS = (
    Call("sagemaker", "CreateModel", "create-model.json"),
    Call("sagemaker", "CreateEndpointConfig", "create-endpoint-config.json"),
    Call("sagemaker", "CreateEndpoint", "create-endpoint.json"),
    Call("application-autoscaling", "RegisterScalableTarget", "register-scalable-target.json"),
    Call("application-autoscaling", "PutScalingPolicy", "put-scaling-policy.json"),
)


@dataclass(frozen=True, slots=True)
class Upload:
    """An archive in the written folder, and its place in S3."""

    file: str
    uri: str
    bytes: int


def bodies(endpoint: Endpoint, version: str, uploads: tuple[Upload, ...]) -> dict[str, dict[str, Any]]:
    """The body of each call by its file's name; `version` tells models and configurations of one endpoint apart."""
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
    """CreateModel: one container, or several of which a caller names one (TargetContainerHostname)."""
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
    """CreateEndpointConfig: one variant, with what the mode adds."""
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
        # Instances with a GPU have a disk of their own, and take no VolumeSizeInGB.
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
    """RegisterScalableTarget: how many instances there may be."""
    return _scaled(endpoint) | {
        "MinCapacity": endpoint.settings.instances,
        "MaxCapacity": endpoint.settings.max_instances,
    }


def put_scaling_policy(endpoint: Endpoint) -> dict[str, Any]:
    """PutScalingPolicy: a target for the load of an instance.

    Generators: requests at once, against their slots. Encoders: requests a minute, as measured. Asynchronous
    endpoints: the requests that wait.
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
        metric = (
            "SageMakerVariantConcurrentRequestsPerModelHighResolution"
            if endpoint.slots
            else "SageMakerVariantInvocationsPerInstance"
        )
        tracking["PredefinedMetricSpecification"] = {"PredefinedMetricType": metric}
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
