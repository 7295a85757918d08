"""The folder of `hfx deploy compose` with Debian's Prometheus and shorter intervals. Grafana is not available."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.containers import images
from tests.containers.containers import GRPC, HTTP, KILL, answers, status, typed
from tests.containers.images import run
from tests.rigs.machine.waiting import wait_until

pytestmark = pytest.mark.container

PROMETHEUS = "http://127.0.0.1:9090/api/v1"
SERVER = SimpleNamespace(http_url=HTTP, grpc_url=GRPC)


@pytest.fixture(scope="module")
def stack(image: str, folder: Path) -> Iterator[Path]:
    images.prometheus()
    typed("hfx deploy compose sentiment stories --output watched", folder)
    stack = folder / "watched"
    for file in stack.glob("prometheus/*.yml"):
        text = re.sub(r"_interval: 10s", "_interval: 1s", file.read_text())
        file.write_text(re.sub(r'for: "60s"', 'for: "2s"', text))
    try:
        typed("docker compose up --build --detach models prometheus", stack)
        wait_until(lambda: status(f"{HTTP}/health") == 200, "the models")
        yield stack
    finally:
        typed("docker compose down --volumes --timeout 5", stack)


def asked(path: str) -> Any:
    return httpx.get(f"{PROMETHEUS}/{path}").raise_for_status().json()["data"]


def firing() -> set[str]:
    return {alert["labels"]["alertname"] for alert in asked("alerts")["alerts"] if alert["state"] == "firing"}


def test_prometheus_scrapes_the_server_and_loads_every_rule(stack: Path) -> None:
    answers(SERVER)
    wait_until(lambda: [each["health"] for each in asked("targets")["activeTargets"]] == ["up"], "the target", 30)
    wait_until(lambda: asked("query?query=hfx_start_time_seconds")["result"], "a sample", 30)
    rules = [rule for group in asked("rules")["groups"] for rule in group["rules"]]
    written = re.findall(r'alert: "(\w+)"', (stack / "prometheus/rules.yml").read_text())
    assert [rule["name"] for rule in rules] == written
    wait_until(lambda: {rule["health"] for g in asked("rules")["groups"] for rule in g["rules"]} == {"ok"}, "rules", 30)
    assert asked("status/flags")["storage.tsdb.path"] == "/prometheus"
    assert firing() == set()


def test_a_killed_server_is_started_again_by_docker(stack: Path) -> None:
    [container] = typed("docker compose ps --quiet models", stack).split()
    # Without its exit code: the container may end before the line does.
    subprocess.run(["docker", "exec", container, "python3", "-c", KILL, r"hfx serve /models"], check=False)
    wait_until(lambda: run("docker", "inspect", "--format", "{{.RestartCount}}", container).strip() == "1", "a restart")
    wait_until(lambda: status(f"{HTTP}/health") == 200, "the models")
    answers(SERVER)


def test_hfx_down_fires_while_the_server_is_stopped_and_clears(stack: Path) -> None:
    typed("docker compose stop models", stack)
    wait_until(lambda: "HfxDown" in firing(), "HfxDown", 60)
    typed("docker compose start models", stack)
    wait_until(lambda: firing() == set(), "the end of HfxDown", 60)
