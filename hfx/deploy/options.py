"""The options of each platform, as dataclasses that also declare the command-line options.

Imports little, for `--help`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from hfx.errors import UsageError
from hfx.options import Option, option

Arch = Literal["amd64", "arm64"]  # processors, by docker's names
NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
LABEL_LENGTH = 63
CLAIM_PATTERN = re.compile(rf"{NAME_PATTERN.pattern}(?:\.{NAME_PATTERN.pattern})*")
URI_LENGTH = 1024
STORAGE_PATTERN = re.compile(r"(?:s3|gs|hf|pvc|https|abfss?|wasbs|oci)://[A-Za-z0-9][A-Za-z0-9._~/%@:+=-]*")
PROMETHEUS_PATTERN = re.compile(r"https?://[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")


def check_range(option: str, value: float | None, low: float, high: float) -> None:
    """Raise UsageError if the `value` of `option` is not in `low` to `high`.

    None means that the option is not given.
    """
    if value is not None and not low <= value <= high:
        raise UsageError(f"{option} {value:.9g} is out of range.", f"Choose {low:.9g} to {high:.9g}.")


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of pods, and how long requests may wait."""

    PANEL: ClassVar[str] = "Pods"

    replicas: int = option(2, "Fewest pods.")
    max_replicas: int | None = option(None, "Most pods. Default: four times --replicas.")
    rate: float | None = option(None, "With --from: requests per second that all pods together must answer.")
    wait: float = option(0.5, "With --from: queueing time in seconds above which a pod is added.")
    pre_stop: int = option(10, "Seconds that a terminating pod still serves before it gets SIGTERM.")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The facts about the cluster that the manifests need.

    Pods in the namespace `monitoring` may read /metrics. Pods in the namespaces `clients` and in the deployment's own
    namespace may send requests. Without `api_keys`, requests need no key; without `tls`, requests are not encrypted.
    """

    claim: str = option("", "PersistentVolumeClaim with the model repository. Default: the models are in --image.")
    monitoring: str = option("monitoring", "Namespace of Prometheus.", "--monitoring-namespace")
    clients: tuple[str, ...] = option(
        (),
        "Another namespace that may send requests, such as the ingress controller's. Repeatable.",
        "--allow-namespace",
    )
    api_keys: str = option(
        "",
        "Secret with API keys: `keys` has one per line, `token` is the key that the job uses. "
        "Closes gRPC, which has no keys.",
        "--api-key-secret",
        metavar="NAME",
    )
    tls: str = option(
        "",
        "Secret with the server's tls.crt and tls.key, and with ca.crt for the job to trust.",
        "--tls-secret",
        metavar="NAME",
    )

    @property
    def has_grpc(self) -> bool:
        """Whether the gRPC port is open. With API keys it is closed, because Triton can't check the keys."""
        return not self.api_keys

    @property
    def warnings(self) -> tuple[str, ...]:
        """A message for each protection that the deployment lacks."""
        if self.api_keys and self.tls:
            return ()
        if self.api_keys:
            return ("API keys travel in plain text inside the cluster: give --tls-secret.",)
        return (
            "The server requires no API key: everything that the network policy lets in can use it, and all pods if no "
            "network plugin enforces policies. Give --api-key-secret and --tls-secret.",
        )

    def __post_init__(self) -> None:
        if self.claim and (len(self.claim) > 253 or not CLAIM_PATTERN.fullmatch(self.claim)):
            raise UsageError(f"{self.claim!r} can't be a claim's name.", "`kubectl get pvc` shows the names.")
        for secret in filter(None, (self.api_keys, self.tls)):
            if len(secret) > 253 or not CLAIM_PATTERN.fullmatch(secret):
                raise UsageError(f"{secret!r} can't be a Secret's name.", "`kubectl get secrets` shows the names.")
        for namespace in (self.monitoring, *self.clients):
            check_namespace(namespace)


def check_namespace(name: str) -> None:
    """Raise UsageError unless `name` can be a namespace."""
    if len(name) > LABEL_LENGTH or not NAME_PATTERN.fullmatch(name):
        raise UsageError(f"{name!r} can't be a namespace.", "`kubectl get namespaces` shows them.")


@dataclass(frozen=True, slots=True)
class Service:
    """The location of the models for KServe, and how KServe splits traffic (`canary` None: not at all)."""

    storage_uri: Annotated[str, Option(help="Location of the model folders: s3://BUCKET/PATH, pvc://CLAIM/PATH, …")]
    namespace: str = option("default", "Namespace of the service.")
    canary: int | None = option(
        None, "Percentage of requests for a new revision. Makes the service run on Knative. Default: Deployments."
    )
    prometheus: str = option("http://prometheus-operated.monitoring.svc:9090", "Address of Prometheus, for KEDA.")

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        if len(self.storage_uri) > URI_LENGTH or not STORAGE_PATTERN.fullmatch(self.storage_uri):
            raise UsageError(
                f"{self.storage_uri!r} can't be a storage URI of KServe.",
                "Give SCHEME://PATH of a folder of model folders: s3, gs, hf, pvc, https, abfs, wasbs or oci.",
            )
        if len(self.prometheus) > URI_LENGTH or not PROMETHEUS_PATTERN.fullmatch(self.prometheus):
            raise UsageError(f"{self.prometheus!r} is not an address of Prometheus.", "Give http://HOST:PORT.")
        if self.canary is not None and not 0 <= self.canary <= 100:
            raise UsageError(f"--canary {self.canary} is out of range.", "Choose 0 to 100, percent.")


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """The options of a SageMaker endpoint. None, or an empty text or tuple, means that the option is not given."""

    role: str = option("", "ARN of the execution role, as described by role-trust.json and policy.json.")
    region: str = option("", "Region of AWS's own Triton image. Default: the region of --image.")
    bucket: str = option(
        "", "s3://BUCKET/PREFIX for archives and answers. Default: s3://sagemaker-REGION-ACCOUNT/NAME."
    )
    instance_type: str = option("", "Instance type, such as ml.c7i.xlarge.")
    instances: int = option(1, "Number of instances. With autoscaling: the fewest.")
    budget: float | None = option(
        None, "Largest price per hour for all instances. The cheapest suitable type is chosen."
    )
    prices: Path | None = option(None, "Price file of the region (JSON). hfx ships no prices.")
    serverless: bool = option(False, "Create a serverless endpoint.")
    memory_mb: int | None = option(None, "Memory of a serverless endpoint in MB. Default: what the model needs.")
    concurrency: int = option(5, "Most concurrent requests to a serverless endpoint.")
    asynchronous: bool = option(False, "Create an asynchronous endpoint: requests and answers are in S3.", "--async")
    stream: bool = option(False, "Generators: stream answers token by token.")
    capture: int | None = option(None, "Percentage of requests and answers to keep in S3, 1 to 100.")
    subnets: tuple[str, ...] = option((), "Subnet of the VPC to run in. Repeatable.", "--subnet")
    security_groups: tuple[str, ...] = option((), "Security group in the VPC. Repeatable.", "--security-group")
    max_instances: int | None = option(None, "Scale automatically up to this many instances.")
    scale_target: float | None = option(
        None,
        "Target load per instance: requests per minute. Generators: concurrent requests. With "
        "--async: waiting requests.",
    )
    ami: str = option("", "AMI of GPU instances (InferenceAmiVersion). Default: the one for CUDA 13.")
