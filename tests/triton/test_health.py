"""/health of `hfx serve`, for load balancers and orchestrators: the state of the models in addition to Triton's own."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from hfx.triton.liveness.__main__ import main
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import ServeProcess, infer, serving
from tests.rigs.servers.toy_models import write_flaky, write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]


def health(served: ServeProcess, path: str = "/health") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(served.http_url + path, timeout=60) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def checked(served: ServeProcess, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return exit code and output of the container's health check."""
    return main([served.http_url]), capsys.readouterr().out


def test_a_dead_model_is_unhealthy_until_it_is_served_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = tmp_path / "flag"
    repository = write_flaky(write_toy(tmp_path / "repository"), flag)
    with serving(repository) as served:
        assert health(served) == (200, "")
        assert checked(served, capsys) == (0, "healthy: by hfx serve\n")
        flag.touch()
        os.kill(served.stub("flaky"), signal.SIGKILL)
        reason = "the Python process of flaky died (killed by signal 9)"
        wait_until(lambda: health(served) == (503, reason))
        assert health(served, "/v2/health/ready") == (503, reason)
        assert health(served, "/v2/health/live") == (200, "")
        assert checked(served, capsys) == (1, f"unhealthy: {reason}\n")
        assert infer(served.http_url, "toy", "four") == "4 characters"
        [front] = served.fronts
        os.kill(front, signal.SIGKILL)
        served.wait_for_words("the HTTP front died")
        wait_until(lambda: health(served) == (503, reason))
        flag.unlink()
        served.wait_for_words("serving again after")
        wait_until(lambda: health(served) == (200, ""))
