"""`hfx serve --with local`: the tritonserver on PATH is watched, restarted, reloaded and stopped like hfx's own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.triton import process
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.local_triton import install
from tests.rigs.servers.serve_process import FREE_PORTS, infer, left_behind, post, serving
from tests.rigs.servers.toy_models import write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]
LOCAL = ("--with", "local")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(write_toy(tmp_path / "repository"), "other")


def on_path(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_the_tritonserver_on_path_is_healed_reloaded_and_drained(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_path(monkeypatch, install(tmp_path / "opt"))
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "24.10")
    export_zoo("sentiment-distilbert", repository, "sentiment", "int8")
    with serving(repository, *LOCAL) as served:
        server = served.server
        assert infer(served.http_url, "sentiment", "A lovely garden")  # by hfx's onnxruntime backend: it has none
        assert "Triton 24.10 has vulnerabilities" in served.words
        assert infer(served.http_url, "toy", "four") == "4 characters"
        os.kill(served.stub("toy_tokenize"), signal.SIGKILL)
        served.wait_for_words("the Python process of toy_tokenize died (killed by signal 9); serving again after")
        assert infer(served.http_url, "toy", "four") == "4 characters"
        assert served.server == server
        before = served.stub("other_tokenize")
        code, (said, _) = main(["reload", "other", "--repository", str(repository)]), capsys.readouterr()
        assert code == 0 and "other: reloaded" in said
        code, (said, _) = main(["reload", "nope", "--repository", str(repository)]), capsys.readouterr()
        assert code == 5 and "nope: failed: " in said and "has no model 'nope'" in said
        wait_until(lambda: process.stubs(server).get("other_tokenize_0_0", [before]) != [before])
        os.kill(server, signal.SIGKILL)
        served.wait_for_words("tritonserver died (killed by signal 9); serving again after")
        assert infer(served.http_url, "other", "four") == "4 characters"
        served.running.terminate()
        assert served.end() == 0, served.words
    assert "no accepted request was lost" in served.words
    assert left_behind() == []


def test_a_triton_without_sockets_serves_at_a_port_without_model_control(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, install(tmp_path / "opt", refuses_sockets=True, has_onnxruntime=True))
    export_zoo("sentiment-distilbert", repository, "sentiment", "int8")
    with serving(repository, *LOCAL) as served:
        assert "Socket 'unix:/nowhere/s:" in served.words
        [arguments] = [path.read_text() for path in Path("/proc").glob(f"{served.server}/cmdline")]
        # hfx's onnxruntime stands beside its own, which can't run anything.
        assert infer(served.http_url, "sentiment", "A lovely garden")
        port = next(word for word in arguments.split("\0") if word.startswith("--http-port=")).partition("=")[2]
        status, refusal = post(f"http://127.0.0.1:{port}/v2/repository/models/toy/unload", {})
        assert status != 200, refusal
        before = served.server
        os.kill(served.stub("toy_tokenize"), signal.SIGKILL)
        served.wait_for_words("the Python process of toy_tokenize died (killed by signal 9); serving again after")
        assert served.server != before
        assert infer(served.http_url, "toy", "four") == "4 characters"


def test_the_error_for_a_missing_tritonserver_says_where_hfx_searched(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["serve", str(repository), *FREE_PORTS, *LOCAL]
    installed = install(tmp_path / "opt")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert main(command) == 5
    said = capsys.readouterr().err
    assert f"({tmp_path / 'nothing'})" in said
    assert "--with embedded" in said
    on_path(monkeypatch, installed)
    monkeypatch.setenv("HFX_TRITON_BACKENDS", str(tmp_path / "none"))
    assert main(command) == 5
    said = capsys.readouterr().err
    assert str(tmp_path / "none") in said and "HFX_TRITON_BACKENDS" in said
