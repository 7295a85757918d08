"""`hfx deploy compose`: the files pass their own tools' checks, and alerts fire exactly when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from hfx.cli.commands import load
from hfx.deploy import compose, docker
from hfx.deploy.deployment import Deployment, open_deployment
from hfx.deploy.folder import render_text
from hfx.deploy.options import Arch
from tests.rigs.files.repositories import build

TARGETS: tuple[tuple[str, Arch], ...] = (("cpu", "arm64"), ("gpu", "amd64"))
MINUTES = 20


@pytest.fixture(params=TARGETS, ids="-".join)
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    device, arch = request.param
    return open_deployment(build(tmp_path / "repository"), ["m"], device=device, arch=arch)


@pytest.fixture
def generating(tmp_path: Path) -> Deployment:
    """A repository with an encoder `m` and a generator `g` with a queue of 128 requests."""
    made = open_deployment(build(tmp_path / "repository"), ["m"])
    encoder = made.models[0]
    needs = replace(encoder.needs, slots=8, queue=128)
    generator = replace(encoder, manifest=replace(encoder.manifest, name="g"), needs=needs)
    return replace(made, models=(generator, encoder))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def alerts(deployment: Deployment) -> list[dict[str, Any]]:
    """Return the written rules."""
    text = render_text("compose/prometheus/rules.yml.j2", {"deployment": deployment})
    rules: list[dict[str, Any]] = yaml.safe_load(text)["groups"][0]["rules"]
    return rules


def test_compose_yaml_fits_the_specification_and_publishes_to_this_machine_only(
    deployment: Deployment, tmp_path: Path
) -> None:
    compose.write(deployment, tmp_path / "out")
    file = tmp_path / "out/compose.yaml"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    services = read(file)["services"]
    assert services["models"]["platform"] == f"linux/{deployment.arch}"
    ports = [port for service in services.values() for port in service["ports"]]
    assert len(ports) == 4 and all(port.startswith("127.0.0.1:") for port in ports)
    reserved = services["models"]["deploy"]["resources"].get("reservations")
    assert bool(reserved) == (deployment.device == "gpu")
    mounted = [word.split(":")[0] for service in services.values() for word in service.get("volumes", ())]
    assert [source for source in mounted if source != "metrics" and not (tmp_path / "out" / source).exists()] == []
    target = read(tmp_path / "out/prometheus/prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == [f"models:{deployment.ports.http}"]


def test_the_containers_command_is_one_that_the_command_line_takes(deployment: Deployment) -> None:
    words = docker.serve_command(deployment)
    assert words[:2] == ["hfx", "serve"]
    context = load("serve").make_context("serve", words[2:])
    assert (context.params["method"], context.params["device"]) == ("local", deployment.device)


def test_every_expression_is_promql_and_each_panel_has_its_place(generating: Deployment, tmp_path: Path) -> None:
    compose.write(replace(generating, models=generating.models[1:]), tmp_path / "out")
    panels = json.loads((tmp_path / "out/grafana/dashboard.json").read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(panels) == len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) > 10
    for expression in [*shown, *(alert["expr"] for alert in alerts(generating))]:
        promql_parser.parse(expression)
    for target in (target for panel in panels for target in panel["targets"]):
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), target


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    selector = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    return {"series": f"{name}{{{selector}}}", "values": values}


# Alert -> a series for which it fires, and one for which it does not.
CASES = {
    "HfxDown": (
        [series("up", f"0x{MINUTES}", job="hfx", instance="i")],
        [series("up", f"1x{MINUTES}", job="hfx", instance="i")],
    ),
    "HfxRestarts": (
        [
            series("hfx_restarts_total", f"0 1 2 3 4x{MINUTES}", instance="i"),
            series("hfx_start_time_seconds", f"5x{MINUTES}", instance="i"),
        ],
        [  # the container once, a model once, which resets the counters of all models
            *(series("nv_inference_request_success", f"5 5 0 0 0x{MINUTES}", model=m, instance="i") for m in "abcde"),
            series("hfx_restarts_total", f"0 0 0 1x{MINUTES}", instance="i"),
            series("hfx_start_time_seconds", f"5 5 7x{MINUTES}", instance="i"),
        ],
    ),
    "HfxRequestsFail": (
        [
            series("nv_inference_request_failure", f"0+10x{MINUTES}", model="m", reason="OTHER"),
            series("nv_inference_request_success", f"0+90x{MINUTES}", model="m"),
        ],
        [
            series("nv_inference_request_failure", f"0+90x{MINUTES}", model="m", reason="CANCELED"),
            series("nv_inference_request_failure", f"0+1x{MINUTES}", model="m", reason="OTHER"),
            series("nv_inference_request_success", f"0+90x{MINUTES}", model="m"),
        ],
    ),
    "HfxHttpRefused": (
        [
            series("hfx_http_requests_total", f"0+6x{MINUTES}", route="r", model="", status="503"),
            series("hfx_http_requests_total", f"0+94x{MINUTES}", route="r", model="m", status="200"),
        ],
        [
            series("hfx_http_requests_total", f"0+4x{MINUTES}", route="r", model="", status="429"),
            series("hfx_http_requests_total", f"0+50x{MINUTES}", route="r", model="", status="401"),
            series("hfx_http_requests_total", f"0+46x{MINUTES}", route="r", model="m", status="200"),
        ],
    ),
    "HfxAnswersDiffer": (
        [
            series("hfx_parity_answers_total", f"0+60x{MINUTES}", model="m", verdict="same"),
            series("hfx_parity_answers_total", f"0+1x{MINUTES}", model="m", verdict="differs"),
            series("hfx_parity_limit", f"1x{MINUTES}", model="m", of="agreement"),
        ],
        [
            series("hfx_parity_answers_total", f"0+96x{MINUTES}", model="m", verdict="same"),
            series("hfx_parity_answers_total", f"0+4x{MINUTES}", model="m", verdict="differs"),
            series("hfx_parity_limit", f"0.95x{MINUTES}", model="m", of="agreement"),
        ],
    ),
    "HfxScoresDrift": (
        [
            series("hfx_parity_answers_total", f"0+100x{MINUTES}", model="m", verdict="same"),
            series("hfx_parity_drift_total", f"0+3x{MINUTES}", model="m"),
            series("hfx_parity_limit", f"0.02x{MINUTES}", model="m", of="drift"),
        ],
        [
            series("hfx_parity_answers_total", f"0+100x{MINUTES}", model="m", verdict="same"),
            series("hfx_parity_drift_total", f"0+1x{MINUTES}", model="m"),
            series("hfx_parity_limit", f"0.02x{MINUTES}", model="m", of="drift"),
        ],
    ),
    "HfxQueue_g": (
        [
            series("hfx_queue_length", f"103x{MINUTES}", model="g"),
            series("hfx_queue_limit", f"128x{MINUTES}", model="g"),
        ],
        [
            series("hfx_queue_length", f"102x{MINUTES}", model="g"),
            series("hfx_queue_limit", f"128x{MINUTES}", model="g"),
        ],
    ),
    "HfxQueue_m": (
        [
            series("nv_inference_queue_duration_us", f"0+200000000x{MINUTES}", model="m_net"),
            series("nv_inference_request_success", f"0+60x{MINUTES}", model="m_net"),
        ],
        [
            series("nv_inference_queue_duration_us", f"0+2000000x{MINUTES}", model="m_net"),
            series("nv_inference_request_success", f"0+60x{MINUTES}", model="m_net"),
        ],
    ),
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_alerts_fire_when_they_should_and_not_before(generating: Deployment, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    listed = alerts(generating)
    assert {alert["alert"] for alert in listed} == set(CASES)
    values = [{name: alert[name] for name in ("alert", "expr", "for")} for alert in listed]
    rules.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": values}]}))
    for fires in (True, False):
        for name, cases in CASES.items():
            labels = {"model": name[-1]} if name == "HfxQueue_g" else {}
            labels |= {"job": "hfx", "instance": "i"} if name == "HfxDown" else {}
            labels |= {"instance": "i"} if name == "HfxRestarts" else {}
            labels |= {"model": "m"} if name in {"HfxRequestsFail", "HfxAnswersDiffer", "HfxScoresDrift"} else {}
            test = {
                "interval": "1m",
                "input_series": cases[0 if fires else 1],
                "alert_rule_test": [
                    {"eval_time": "9m", "alertname": name, "exp_alerts": [{"exp_labels": labels}] if fires else []}
                ],
            }
            file = tmp_path / f"{name}-{fires}.yml"
            file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [test]}))
            done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_takes_the_written_configuration(deployment: Deployment, tmp_path: Path) -> None:
    compose.write(deployment, tmp_path / "out")
    for words in (["check", "config", "prometheus.yml"], ["check", "rules", "rules.yml"]):
        done = subprocess.run(["promtool", *words], cwd=tmp_path / "out/prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
