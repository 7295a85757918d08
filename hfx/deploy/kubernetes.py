"""The target `kubernetes`: manifests for `kubectl apply`, a Job that verifies the pods, rules for prometheus-adapter.

A manifest that renders empty is not written: a disruption budget for one pod, or an autoscaler for a fixed number.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from hfx.deploy.deployment import Deployment
from hfx.deploy.docker import serve_command
from hfx.deploy.folder import output_folder, render
from hfx.deploy.options import Cluster
from hfx.deploy.sizing import LIVENESS_SECONDS, PROBE_SECONDS, Sizing, metrics
from hfx.errors import UsageError
from hfx.manifest import to_json

USER = 1000  # the user id of the image
READY_SECONDS = 300  # how long the Job waits for the first pod
# Where the secrets are mounted. The secret with API keys has `keys`, with one key per line, and `token`, one of these
# keys, for the Job. The secret for TLS has the entries that Kubernetes defines.
KEYS_FOLDER, TLS_FOLDER = "/run/secrets/hfx-keys", "/run/secrets/hfx-tls"
PROBE_TIMEOUT = 60  # long, because the probe waits while a model makes progress


def write(deployment: Deployment, sizing: Sizing, cluster: Cluster, output: Path, force: bool = False) -> None:
    """Write the folder: manifests/, verify/, prometheus-adapter.yaml and README.md."""
    check_service_name(deployment.name)
    with output_folder(output, "kubernetes", deployment, force) as folder:
        render("kubernetes", folder, values(deployment, sizing, cluster))
        for path in folder.rglob("*.yaml"):
            if not path.read_text(encoding="utf-8").strip():
                path.unlink()


def check_service_name(name: str) -> str:
    """Return `name`. Raises UsageError unless it begins with a letter, as the names of Services must."""
    if not name[0].isalpha():
        raise UsageError(f"{name!r} can't be a Service's name: it begins with a digit.", "Give another --name.")
    return name


def values(deployment: Deployment, sizing: Sizing, cluster: Cluster) -> dict[str, Any]:
    """Return the values for the templates."""
    scrapes = deployment.ports.scrapes
    command = [*serve_command(deployment), "--scrape-port", str(scrapes)]
    return {
        **container_values(deployment, sizing, scrapes),
        "cluster": cluster,
        "labels": labels(deployment),
        "command": command
        if cluster.api_keys
        else [*command, "--insecure"],  # the network policy decides which clients reach it
        "keys_folder": KEYS_FOLDER,
        "tls_folder": TLS_FOLDER,
        "models_digest": models_digest(deployment),
        "check": check_command(deployment, cluster),
        "metrics": metrics(sizing.signals),
    }


def container_values(deployment: Deployment, sizing: Sizing, probed: int) -> dict[str, Any]:
    """Return the values for templates/shared/: the container, probed at the port `probed`, and its volumes."""
    return {
        "deployment": deployment,
        "sizing": sizing,
        "user": USER,
        "liveness": liveness_command(probed, probed),
        "health": "/health",
        "probed": probed,
        "is_stock": False,
        "period": PROBE_SECONDS,
        "liveness_period": LIVENESS_SECONDS,
        "liveness_timeout": PROBE_TIMEOUT,
        "has_pre_stop": True,
    }


def labels(deployment: Deployment) -> dict[str, str]:
    """Return the labels by which the pods are selected."""
    return {"app.kubernetes.io/name": deployment.name, "app.kubernetes.io/component": "server"}


def liveness_command(http: int, metrics: int, folder: str = "/opt/hfx") -> list[str]:
    """Return a probe that sends a request to each model inside the container. The module `liveness` is in `folder`."""
    url = "http://127.0.0.1"
    module = ["env", f"PYTHONPATH={folder}", "python3", "-B", "-m", "liveness"]
    return [*module, f"{url}:{http}", f"{url}:{metrics}/metrics"]


def check_command(deployment: Deployment, cluster: Cluster) -> list[str]:
    """Return the command of the Job, which compares the pods' answers with those recorded from the checkpoints."""
    url = f"{'https' if cluster.tls else 'http'}://{deployment.name}:{deployment.ports.http}"
    options = ["--repository", "/models", "--device", deployment.device, "--wait", str(READY_SECONDS)]
    key = ["--token-file", f"{KEYS_FOLDER}/token"] if cluster.api_keys else []
    authority = ["--tls-ca", f"{TLS_FOLDER}/ca.crt"] if cluster.tls else []
    return ["hfx", "deploy", "check", url, *deployment.names, *options, *key, *authority]


def models_digest(deployment: Deployment) -> str:
    """Return a digest of all models' manifests. When it changes, Kubernetes replaces the pods."""
    text = "".join(to_json(model.manifest) for model in deployment.models)
    return hashlib.sha256(text.encode()).hexdigest()
