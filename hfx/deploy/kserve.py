"""The target `kserve`: an InferenceService, and a ServingRuntime, because KServe's own has an old Triton.

KServe runs a service either as Deployments ("Standard", scaled by KEDA) or on Knative, which can split traffic between
revisions. Knative is used if `canary` is given.

For models from a bundle, which contains their packages, pods run tritonserver in NVIDIA's image, without hfx's front
and supervisor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hfx.deploy.bundle import packages_of
from hfx.deploy.deployment import Deployment, Figure
from hfx.deploy.docker import is_own_image, serve_command
from hfx.deploy.folder import output_folder, render
from hfx.deploy.kubernetes import check_service_name, container_values, liveness_command
from hfx.deploy.options import Service
from hfx.deploy.sizing import SLOTS, WAITING, Sizing
from hfx.triton.arguments import CONTAINER_SECONDS, server_arguments

MODELS = "/mnt/models"  # where KServe mounts storageUri
FORMAT = "hfx"
TRITON_METRICS = 8002  # tritonserver's own port


def write(deployment: Deployment, sizing: Sizing, service: Service, output: Path, force: bool = False) -> None:
    """Write the folder: serving-runtime.yaml, inference-service.yaml and README.md."""
    check_service_name(deployment.name)
    with output_folder(output, "kserve", deployment, force) as folder:
        render("kserve", folder, values(deployment, sizing, service))


def values(deployment: Deployment, sizing: Sizing, service: Service) -> dict[str, Any]:
    """Return the values for the templates."""
    is_knative = service.canary is not None
    predictor = f"{deployment.name}-predictor"
    pods = f'namespace="{service.namespace}",pod=~"{predictor}-.*"'
    return {
        **container_values(deployment, sizing, deployment.ports.http),
        **runtime_values(deployment),
        "has_pre_stop": not is_knative,  # Knative refuses the field, because its proxy drains requests
        "service": service,
        "is_knative": is_knative,
        "format": FORMAT,
        "predictor": predictor,
        "queries": [(signal.query(pods), signal.target) for signal in sizing.signals],
        "concurrency": concurrency(sizing),
    }


def runtime_values(deployment: Deployment) -> dict[str, Any]:
    """Return command and image of the pods.

    They are `hfx serve` in hfx's image, or for a bundle tritonserver in NVIDIA's image.
    """
    ports = deployment.ports
    if not (packages := packages_of(deployment)):
        # The cluster's network policies decide which clients reach it.
        command = [*serve_command(deployment, MODELS), "--insecure"]
        return {"command": command, "image": deployment.image, "metrics_port": ports.http}
    return {
        "command": [
            "tritonserver",
            *server_arguments(
                MODELS, deployment.device, CONTAINER_SECONDS[0], deployment.drain, secret=deployment.secret
            ),
        ],
        "image": deployment.image if is_own_image(deployment) else deployment.release.image,
        "metrics_port": TRITON_METRICS,
        "liveness": liveness_command(ports.http, TRITON_METRICS, f"{MODELS}/{packages}"),
        "health": "/v2/health/ready",
        "is_stock": True,
    }


def concurrency(sizing: Sizing) -> Figure:
    """Return how many requests Knative gives a pod before it starts another pod."""
    counted = [signal for signal in sizing.signals if signal.metric in (SLOTS, WAITING)]
    source = "; ".join(f"{signal.target.value} of {signal.models[0]}: {signal.target.source}" for signal in counted)
    return Figure(sum(signal.target.value for signal in counted), source)
