"""The target `kserve`: a ServingRuntime of its own, as the one of KServe has an old Triton, and an InferenceService.

KServe runs a service as plain Deployments ("Standard": KEDA scales it) or by Knative (which splits traffic between
revisions by percent). One excludes the other, so `canary` decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.deploy.autoscaling import SLOTS, WAITING
from hfx.deploy.deployment import Deployment, Figure
from hfx.deploy.docker import serve_command
from hfx.deploy.folder import output_folder, render
from hfx.deploy.kubernetes import check_namespace, check_service_name, container_values
from hfx.deploy.sizing import Sizing
from hfx.errors import UsageError

MODELS = "/mnt/models"  # where KServe puts what storageUri names
FORMAT = "hfx"
URI_LENGTH = 1024
STORAGE_PATTERN = re.compile(r"(?:s3|gs|hf|pvc|https|abfss?|wasbs|oci)://[A-Za-z0-9][A-Za-z0-9._~/%@:+=-]*")
PROMETHEUS_PATTERN = re.compile(r"https?://[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")


@dataclass(frozen=True, slots=True)
class Service:
    """Where the models come from, and how traffic is split.

    `storage_uri` is a folder of model folders. `canary` is the percentage of requests that a new revision gets; None
    for all at once. `prometheus` is the address that KEDA asks.
    """

    storage_uri: str
    namespace: str = "default"
    canary: int | None = None
    prometheus: str = "http://prometheus-operated.monitoring.svc:9090"

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        if len(self.storage_uri) > URI_LENGTH or not STORAGE_PATTERN.fullmatch(self.storage_uri):
            raise UsageError(
                f"{self.storage_uri!r} can't be a storage URI of KServe.",
                "Give SCHEME://PATH of a folder of model folders: s3, gs, hf, pvc, https, abfs, wasbs or oci.",
            )
        if len(self.prometheus) > URI_LENGTH or not PROMETHEUS_PATTERN.fullmatch(self.prometheus):
            raise UsageError(f"{self.prometheus!r} is no address of Prometheus.", "Give http://HOST:PORT.")
        if self.canary is not None and not 0 <= self.canary <= 100:
            raise UsageError(f"--canary {self.canary} is out of range.", "Choose 0 to 100, percent.")


def write(deployment: Deployment, sizing: Sizing, service: Service, output: Path, force: bool = False) -> None:
    """Write the folder: serving-runtime.yaml, inference-service.yaml and README.md."""
    check_service_name(deployment.name)
    with output_folder(output, "kserve", deployment, force) as folder:
        render("kserve", folder, values(deployment, sizing, service))


def values(deployment: Deployment, sizing: Sizing, service: Service) -> dict[str, Any]:
    """What the templates use."""
    is_knative = service.canary is not None
    predictor = f"{deployment.name}-predictor"
    pods = f'namespace="{service.namespace}",pod=~"{predictor}-.*"'
    return {
        **container_values(deployment, sizing),
        "has_pre_stop": not is_knative,  # Knative refuses the field, and drains by its own proxy
        "service": service,
        "is_knative": is_knative,
        "command": [
            *serve_command(deployment, MODELS),
            "--insecure",
        ],  # the cluster's network policies say who reaches it
        "format": FORMAT,
        "predictor": predictor,
        "queries": [(signal.query(pods), signal.target) for signal in sizing.signals],
        "concurrency": concurrency(sizing),
    }


def concurrency(sizing: Sizing) -> Figure:
    """How many requests Knative gives a pod before it starts another one."""
    counted = [signal for signal in sizing.signals if signal.metric in (SLOTS, WAITING)]
    source = "; ".join(f"{signal.target.value} of {signal.models[0]}: {signal.target.source}" for signal in counted)
    return Figure(sum(signal.target.value for signal in counted), source)
