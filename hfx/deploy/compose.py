"""The target `compose`: the models' container, Prometheus with alerts on its metrics, Grafana with a dashboard."""

from __future__ import annotations

from pathlib import Path

from hfx.deploy import docker, monitoring
from hfx.deploy.deployment import Deployment
from hfx.deploy.folder import copy_models, output_folder, render

# Long-term support of Prometheus; both are the user's to change in compose.yaml.
PROMETHEUS_IMAGE = "prom/prometheus:v3.5.0"
GRAFANA_IMAGE = "grafana/grafana:12.1.0"


def write(deployment: Deployment, output: Path, force: bool = False) -> None:
    """Write the folder: compose.yaml, the image's Dockerfile and models, and what Prometheus and Grafana read."""
    with output_folder(output, "compose", deployment, force) as folder:
        copy_models(deployment, folder / docker.MODELS_FOLDER)
        values = docker.values(deployment) | {
            "alerts": tuple(monitoring.alerts(deployment)),
            "job": monitoring.JOB,
            "prometheus_image": PROMETHEUS_IMAGE,
            "grafana_image": GRAFANA_IMAGE,
        }
        render("compose", folder, values)
        docker.write_dockerfile(folder, values)
        (folder / "grafana/dashboard.json").write_text(monitoring.dashboard(deployment), encoding="utf-8")
