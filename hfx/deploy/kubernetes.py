"""The target `kubernetes`: flat manifests for `kubectl apply`, a Job that verifies what runs, rules for the autoscaler.

Empty manifests (no budget for one pod, no autoscaler for a fixed number) are left out.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.deploy.autoscaling import metrics
from hfx.deploy.deployment import NAME_PATTERN, Deployment
from hfx.deploy.docker import serve_command
from hfx.deploy.folder import output_folder, render
from hfx.deploy.sizing import LIVENESS_SECONDS, PROBE_SECONDS, Sizing
from hfx.errors import UsageError
from hfx.manifest import to_json

LABEL_LENGTH = 63
CLAIM_PATTERN = re.compile(rf"{NAME_PATTERN.pattern}(?:\.{NAME_PATTERN.pattern})*")
USER = 1000  # of the image
READY_SECONDS = 300  # that the Job waits for the first pod
PROBE_TIMEOUT = 60  # the probe itself waits while a model makes progress


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the manifests need to know of the cluster.

    `claim` is a PersistentVolumeClaim with the model repository; empty where the image has the models. Pods of the
    namespace `monitoring` read /metrics; those of `clients`, and of the deployment's own, send requests.
    """

    claim: str = ""
    monitoring: str = "monitoring"
    clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.claim and (len(self.claim) > 253 or not CLAIM_PATTERN.fullmatch(self.claim)):
            raise UsageError(f"{self.claim!r} can't be a claim's name.", "`kubectl get pvc` shows the names.")
        for namespace in (self.monitoring, *self.clients):
            check_namespace(namespace)


def check_namespace(name: str) -> str:
    """`name` when it can be a namespace's; UsageError otherwise."""
    if len(name) > LABEL_LENGTH or not NAME_PATTERN.fullmatch(name):
        raise UsageError(f"{name!r} can't be a namespace.", "`kubectl get namespaces` shows them.")
    return name


def write(deployment: Deployment, sizing: Sizing, cluster: Cluster, output: Path, force: bool = False) -> None:
    """Write the folder: manifests/, verify/, prometheus-adapter.yaml and README.md."""
    check_service_name(deployment.name)
    with output_folder(output, "kubernetes", deployment, force) as folder:
        render("kubernetes", folder, values(deployment, sizing, cluster))
        for path in folder.rglob("*.yaml"):
            if not path.read_text(encoding="utf-8").strip():
                path.unlink()


def check_service_name(name: str) -> str:
    """`name` when a Service can have it: those begin with a letter; UsageError otherwise."""
    if not name[0].isalpha():
        raise UsageError(f"{name!r} can't be a Service's name: it begins with a digit.", "Give another --name.")
    return name


def values(deployment: Deployment, sizing: Sizing, cluster: Cluster) -> dict[str, Any]:
    """What the templates use."""
    return {
        **container_values(deployment, sizing),
        "cluster": cluster,
        "labels": labels(deployment),
        "command": [*serve_command(deployment), "--insecure"],  # the network policy says who reaches it
        "models_digest": models_digest(deployment),
        "check": check_command(deployment),
        "metrics": metrics(sizing.signals),
    }


def container_values(deployment: Deployment, sizing: Sizing) -> dict[str, Any]:
    """What the templates of templates/shared/ use: the container and its volumes."""
    return {
        "deployment": deployment,
        "sizing": sizing,
        "user": USER,
        "liveness": liveness_command(deployment.ports.http, deployment.ports.http),
        "health": "/health",
        "is_stock": False,
        "period": PROBE_SECONDS,
        "liveness_period": LIVENESS_SECONDS,
        "liveness_timeout": PROBE_TIMEOUT,
        "has_pre_stop": True,
    }


def labels(deployment: Deployment) -> dict[str, str]:
    """What tells the pods from all others."""
    return {"app.kubernetes.io/name": deployment.name, "app.kubernetes.io/component": "server"}


def liveness_command(http: int, metrics: int, folder: str = "/opt/hfx") -> list[str]:
    """A request to each model, sent inside the container: by ports of HTTP and metrics, with the module in `folder`."""
    url = "http://127.0.0.1"
    module = ["env", f"PYTHONPATH={folder}", "python3", "-B", "-m", "liveness"]
    return [*module, f"{url}:{http}", f"{url}:{metrics}/metrics"]


def check_command(deployment: Deployment) -> list[str]:
    """The comparison of the pods behind the Service with the checkpoints' recorded answers."""
    url = f"http://{deployment.name}:{deployment.ports.http}"
    options = ["--repository", "/models", "--device", deployment.device, "--wait", str(READY_SECONDS)]
    return ["hfx", "deploy", "check", url, *deployment.names, *options]


def models_digest(deployment: Deployment) -> str:
    """A digest of all manifests: another one, and pods are replaced."""
    text = "".join(to_json(model.manifest) for model in deployment.models)
    return hashlib.sha256(text.encode()).hexdigest()
