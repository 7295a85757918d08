"""The execution role: whose it is, and the least that an endpoint needs."""

from __future__ import annotations

from typing import Any

from hfx.deploy.sagemaker.endpoint import ECR_PATTERN, Endpoint
from hfx.deploy.sagemaker.requests import Upload

NAMESPACES = ("/aws/sagemaker/Endpoints",)  # of the metrics that an instance writes
NETWORK_ACTIONS = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)


def trust(endpoint: Endpoint) -> dict[str, Any]:
    """Who may use the role: SageMaker, for this account."""
    return _document(
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
            "Condition": {"StringEquals": {"aws:SourceAccount": endpoint.account}},
        }
    )


def policy(endpoint: Endpoint, uploads: tuple[Upload, ...]) -> dict[str, Any]:
    """What the role may do: fetch the archives and the image, write logs and metrics, and what options add.

    Where a statement has the resource "*", the action knows no narrower one.
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
