"""The target `compose`: the container with the models, Prometheus with alerts, and Grafana with a dashboard.

Panels and alerts are in templates/compose/panels.yaml and prometheus/rules.yml.j2. The metrics are from Triton (nv_*,
labels model and version) and from the generators' engines (hfx_*, label model). `hfx serve` has both at /metrics. All
expressions are plain PromQL, without dashboard variables.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

from hfx.deploy import docker
from hfx.deploy.deployment import Deployment
from hfx.deploy.folder import TEMPLATES, copy_models, output_folder, render

PANEL_WIDTH, PANEL_HEIGHT, DASHBOARD_WIDTH = 8, 8, 24
# Prometheus is the long-term release. Users may change both images in compose.yaml.
PROMETHEUS_IMAGE = "prom/prometheus:v3.5.0"
GRAFANA_IMAGE = "grafana/grafana:12.1.0"


def write(deployment: Deployment, output: Path, force: bool = False) -> None:
    """Write the folder: compose.yaml, the Dockerfile, the models, and the files of Prometheus and Grafana."""
    with output_folder(output, "compose", deployment, force) as folder:
        copy_models(deployment, folder / docker.MODELS_FOLDER)
        images = {"prometheus_image": PROMETHEUS_IMAGE, "grafana_image": GRAFANA_IMAGE}
        values = docker.values(deployment) | images
        render("compose", folder, values)
        docker.write_dockerfile(folder, values)
        (folder / "grafana/dashboard.json").write_text(dashboard(deployment), encoding="utf-8")


def dashboard(deployment: Deployment) -> str:
    """Return the dashboard as Grafana's JSON."""
    import yaml

    panels = yaml.safe_load((TEMPLATES / "compose/panels.yaml").read_text(encoding="utf-8"))
    value = {
        "uid": deployment.name[:40],
        "title": f"hfx {deployment.name}",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": []},
        "annotations": {"list": []},
        "panels": [_panel(number, **panel) for number, panel in enumerate(panels)],
    }
    return json.dumps(value, indent=2) + "\n"


def _panel(number: int, title: str, unit: str, queries: dict[str, str], description: str = "") -> dict[str, Any]:
    row, column = divmod(number, DASHBOARD_WIDTH // PANEL_WIDTH)
    source = {"type": "prometheus", "uid": "prometheus"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": source,
        "gridPos": {"x": column * PANEL_WIDTH, "y": row * PANEL_HEIGHT, "w": PANEL_WIDTH, "h": PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": letter, "datasource": source, "expr": expression, "legendFormat": legend}
            for letter, (legend, expression) in zip(string.ascii_uppercase, queries.items(), strict=False)
        ],
    }
