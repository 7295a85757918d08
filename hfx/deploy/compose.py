"""The target `compose`: the models' container, Prometheus with alerts on its metrics, Grafana with a dashboard.

Panels and alerts are data here. Metrics are those of Triton (nv_*, labels model and version) and of the generators'
engines (hfx_*, label model); hfx serve passes both on at /metrics. Every expression is plain PromQL, without variables
of a dashboard.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.deploy import docker
from hfx.deploy.deployment import Deployment
from hfx.deploy.folder import copy_models, output_folder, render

JOB = "hfx"  # of Prometheus' configuration
QUEUE_SHARE = 0.8  # of a generator's queue
WAIT_SECONDS = 1.0  # in an encoder's queues, on average
FAILED_SHARE = 0.05  # of requests
PANEL_WIDTH, PANEL_HEIGHT, DASHBOARD_WIDTH = 8, 8, 24


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and how its series are named: Grafana's template of labels."""

    expression: str
    legend: str = "{{model}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart. `unit` is Grafana's id of a unit."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""


def _rate(metric: str, by: str = "model") -> str:
    return f"sum by ({by}) (rate({metric}[2m]))"


def _quantile(share: float, metric: str, by: str = "model") -> str:
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket[2m])))"


PANELS = (
    Panel("Requests", "reqps", (Query(_rate("nv_inference_request_success")),), "Answered, by model and member"),
    Panel(
        "Requests that wait",
        "short",
        (
            Query("sum by (model) (nv_inference_pending_request_count)"),
            Query("sum by (model) (hfx_queue_length)", "{{model}} (engine)"),
        ),
        "In Triton's queues, and in the engines of generators",
    ),
    Panel(
        "Failed, refused and cancelled",
        "reqps",
        (
            Query(_rate("nv_inference_request_failure", "model, reason"), "{{model}} {{reason}}"),
            Query(_rate("hfx_requests_refused_total", "model, reason"), "{{model}} refused: {{reason}}"),
            Query(_rate("hfx_requests_cancelled_total"), "{{model}} cancelled"),
            Query(_rate("hfx_deadline_exceeded_total"), "{{model}} too late"),
            Query(_rate("hfx_http_refusals_total", "reason, key"), "HTTP: {{reason}} {{key}}"),
        ),
    ),
    Panel(
        "HTTP requests",
        "reqps",
        (Query(_rate("hfx_http_requests_total", "route, status"), "{{route}} {{status}}"),),
        "By route and status; 0 is a client that left before its answer",
    ),
    Panel(
        "HTTP: time to the first byte",
        "s",
        (Query(_quantile(0.95, "hfx_http_first_byte_seconds", "route"), "{{route}} p95"),),
    ),
    Panel(
        "Latency by step",
        "ms",
        (Query(f"{_rate('nv_inference_request_duration_us')} / {_rate('nv_inference_request_success')} / 1000"),),
        "Mean time of a request in each member of an ensemble, and in the whole",
    ),
    Panel(
        "Time in the queue by step",
        "ms",
        (Query(f"{_rate('nv_inference_queue_duration_us')} / {_rate('nv_inference_request_success')} / 1000"),),
        "Of generators it is always near zero: their engine has the queue",
    ),
    Panel(
        "Rows in a batch",
        "short",
        (Query(f"{_rate('nv_inference_count')} / {_rate('nv_inference_exec_count')}"),),
        "Mean size of the batches that a step computed",
    ),
    Panel(
        "Tokens",
        "short",
        (
            Query(_rate("hfx_generated_tokens_total"), "{{model}} generated"),
            Query(_rate("hfx_prompt_tokens_total"), "{{model}} read"),
        ),
        "Tokens a second",
    ),
    Panel(
        "Slots",
        "short",
        (
            Query("sum by (model) (hfx_slots_used)", "{{model}} used"),
            Query("sum by (model) (hfx_slots_used + hfx_slots_free)", "{{model}} all"),
        ),
        "Rows of the engine that hold a sequence",
    ),
    Panel(
        "Decode step",
        "s",
        (Query(f"{_rate('hfx_step_seconds_total')} / {_rate('hfx_steps_total')}"),),
        "Mean time of a step of the engine, for all its sequences together",
    ),
    Panel(
        "Time to the first token, and between two",
        "s",
        (
            Query(_quantile(0.95, "hfx_time_to_first_token_seconds"), "{{model}} first, p95"),
            Query(_quantile(0.95, "hfx_inter_token_seconds"), "{{model}} next, p95"),
        ),
    ),
    Panel(
        "Restarts",
        "short",
        (
            Query("sum by (instance) (increase(hfx_restarts_total[1h]) + changes(hfx_start_time_seconds[1h]))"),
            Query(f'1 - min(up{{job="{JOB}"}})', "down"),
        ),
        "In an hour: of models, HTTP fronts, servers and containers",
    ),
    Panel(
        "Compared answers",
        "reqps",
        (Query(_rate("hfx_parity_answers_total", "model, verdict"), "{{model}} {{verdict}}"),),
        "By --shadow: of a drawn share, those that are the reference's, and those that differ",
    ),
    Panel(
        "Computing",
        "short",
        (Query(f"{_rate('nv_inference_compute_infer_duration_us')} / 1e6"),),
        "Requests that a step computes at a time, on average",
    ),
)


# Alerts


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule: it fires once `expression` has had a value for `seconds`."""

    name: str
    expression: str
    seconds: int
    severity: str
    summary: str


def alerts(deployment: Deployment) -> Iterator[Alert]:
    """The rules for `deployment`; bounds of queues are those of its models."""
    yield Alert("HfxDown", f'up{{job="{JOB}"}} == 0', 60, "critical", "The server does not answer.")
    yield Alert(
        "HfxRestarts",
        "sum by (instance) (increase(hfx_restarts_total[15m]) + changes(hfx_start_time_seconds[15m])) > 3.5",
        0,
        "warning",
        "The server or its models were restarted more than three times in 15 minutes: see its log.",
    )
    failed = 'sum by (model) (rate(nv_inference_request_failure{reason!="CANCELED"}[5m]))'
    done = "sum by (model) (rate(nv_inference_request_success[5m]))"
    yield Alert(
        "HfxRequestsFail",
        f"{failed} / ({failed} + {done}) > {FAILED_SHARE}",
        300,
        "warning",
        "More than 5 % of the requests of {{ $labels.model }} failed or were refused.",
    )
    refused = 'sum(rate(hfx_http_requests_total{status=~"429|503"}[5m]))'
    yield Alert(
        "HfxHttpRefused",
        f"{refused} / sum(rate(hfx_http_requests_total[5m])) > {FAILED_SHARE}",
        300,
        "warning",
        "More than 5 % of the HTTP requests were refused because of load or a key's bounds: "
        "hfx_http_refusals_total has the reasons.",
    )
    compared = "sum by (model) (increase(hfx_parity_answers_total[6h]))"
    least = 'max by (model) (hfx_parity_limit{of="agreement"})'
    yield Alert(  # three standard deviations of a drawn share: none where every answer must be equal
        "HfxAnswersDiffer",
        f'sum by (model) (increase(hfx_parity_answers_total{{verdict="differs"}}[6h])) / {compared}'
        f" > 1 - {least} + 3 * sqrt({least} * (1 - {least}) / {compared})",
        0,
        "critical",
        "{{ $labels.model }} gives other answers than its reference: its files, memory or settings have changed.",
    )
    yield Alert(
        "HfxScoresDrift",
        f"sum by (model) (increase(hfx_parity_drift_total[6h])) / {compared} "
        '> max by (model) (hfx_parity_limit{of="drift"})',
        0,
        "critical",
        "The scores of {{ $labels.model }} are farther from its reference's than an export may be.",
    )
    for model in deployment.models:
        if model.is_generator:
            select = f'{{model="{model.name}"}}'
            expression = f"max by (model) (hfx_queue_length{select} / hfx_queue_limit{select}) > {QUEUE_SHARE}"
            summary = f"The queue of {model.name} is nearly full."
        else:
            members = "|".join(model.manifest.folders)
            select = f'{{model=~"{members}"}}'
            queue = f"sum(rate(nv_inference_queue_duration_us{select}[5m]))"
            expression = f"{queue} / sum(rate(nv_inference_request_success{select}[5m])) / 1e6 > {WAIT_SECONDS:g}"
            summary = f"Requests of {model.name} wait for more than {WAIT_SECONDS:g} s in a queue."
        yield Alert(f"HfxQueue_{model.name.replace('-', '_')}", expression, 300, "warning", summary)


# Files


def dashboard(deployment: Deployment) -> str:
    """The dashboard as Grafana's JSON."""
    value = {
        "uid": deployment.name[:40],
        "title": f"hfx {deployment.name}",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": []},
        "annotations": {"list": []},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(value, indent=2) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    a_row = DASHBOARD_WIDTH // PANEL_WIDTH
    source = {"type": "prometheus", "uid": "prometheus"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": {
            "x": number % a_row * PANEL_WIDTH,
            "y": number // a_row * PANEL_HEIGHT,
            "w": PANEL_WIDTH,
            "h": PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": letter, "datasource": source, "expr": query.expression, "legendFormat": query.legend}
            for letter, query in zip(string.ascii_uppercase, panel.queries, strict=False)
        ],
    }


# Long-term support of Prometheus; both are the user's to change in compose.yaml.
PROMETHEUS_IMAGE = "prom/prometheus:v3.5.0"
GRAFANA_IMAGE = "grafana/grafana:12.1.0"


def write(deployment: Deployment, output: Path, force: bool = False) -> None:
    """Write the folder: compose.yaml, the image's Dockerfile and models, and what Prometheus and Grafana read."""
    with output_folder(output, "compose", deployment, force) as folder:
        copy_models(deployment, folder / docker.MODELS_FOLDER)
        values = docker.values(deployment) | {
            "alerts": tuple(alerts(deployment)),
            "job": JOB,
            "prometheus_image": PROMETHEUS_IMAGE,
            "grafana_image": GRAFANA_IMAGE,
        }
        render("compose", folder, values)
        docker.write_dockerfile(folder, values)
        (folder / "grafana/dashboard.json").write_text(dashboard(deployment), encoding="utf-8")
