"""The `docker run` line: complete, bound to this machine, without privileges, and printed as it is run."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.errors import RepositoryError, ServerError, UsageError
from hfx.manifest import TritonTarget, write_manifest
from hfx.releases import MINIMUM_SECURE, release
from hfx.triton import DockerServer
from tests.rigs.files.manifests import fill
from tests.rigs.servers.toy_models import write_toy

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "repository")


def values(line: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(line) if name == option]


def copied_to(file: str) -> str:
    """Return the place of a file of the checkout in the image."""
    return str(re.findall(rf"^COPY .*/{re.escape(file)} (\S+)$", DOCKERFILE, re.MULTILINE)[0])


def test_ports_are_published_on_this_machine_only_and_are_those_of_the_urls(repository: Path) -> None:
    server = DockerServer(repository)
    published = values(server.command(), "--publish")
    assert all(address.startswith("127.0.0.1:") for address in published)
    assert [address.rsplit(":", 1)[1] for address in published] == ["8000", "8001", "8002"]
    assert server.http_url == "http://" + published[0].rpartition(":")[0]
    assert server.grpc_url == published[1].rpartition(":")[0]
    assert values(server.command(), "--publish") == published


def test_chosen_models_are_mounted_with_their_members_each_by_itself_and_read_only(repository: Path) -> None:
    write_toy(repository, "other")
    (repository / ".staging-x").mkdir()
    mounts = values(DockerServer(repository, models=["toy"]).command(), "--mount")
    assert mounts == [
        f"type=bind,source={repository / name},target=/models/{name},readonly" for name in ("toy", "toy_tokenize")
    ]


def test_a_path_with_a_comma_stays_one_field(tmp_path: Path) -> None:
    repository = write_toy(tmp_path / 'a,b "c"')
    mount = values(DockerServer(repository).command(), "--mount")[0]
    assert f'"source={tmp_path}/a,b ""c""/toy"' in mount


def test_the_container_runs_without_root_and_capabilities(repository: Path) -> None:
    line = DockerServer(repository).command()
    user = values(line, "--user")[0]
    assert user == (f"{os.getuid()}:{os.getgid()}" if os.getuid() else "1000:1000")
    assert values(line, "--cap-drop") == ["ALL"]
    assert "--privileged" not in line
    assert values(line, "--shm-size")
    assert values(line, "--ulimit") == ["stack=536870912"]


def closing(repository: Path) -> list[str]:
    """Return the arguments in a new server's command line that close APIs."""
    return [argument for argument in DockerServer(repository).command() if "restricted" in argument]


def test_triton_serves_what_is_written_and_hands_out_no_key(repository: Path) -> None:
    arguments = DockerServer(repository).command()
    arguments = arguments[arguments.index("tritonserver") :]
    assert {"--disable-auto-complete-config", "--model-control-mode=none", "--model-repository=/models"} <= set(
        arguments
    )
    restricted = closing(repository)
    assert [argument.split("=")[0] for argument in restricted] == [
        "--http-restricted-api",
        "--grpc-restricted-protocol",
    ]
    closed = re.compile(r".*=shared-memory,trace,logging:no:key=[0-9a-f]{32}")
    assert all(closed.fullmatch(argument) for argument in restricted)
    assert not set(restricted) & set(closing(repository))  # at each start another value


@pytest.mark.parametrize(("tag", "device"), [("24.12", "gpu"), (MINIMUM_SECURE, "cpu")])
def test_the_image_is_built_from_the_release(repository: Path, tag: str, device: str) -> None:
    server = DockerServer(repository, triton=tag, device=device)
    assert server.image in server.command()
    assert server.image == f"hfx-triton:{tag}-{device}"
    assert values(server.image_command(), "--build-arg") == [f"BASE={release(tag).image}", f"DEVICE={device}"]


def test_the_default_image_is_the_oldest_without_known_vulnerabilities(repository: Path) -> None:
    assert f"ARG BASE={release(MINIMUM_SECURE).image}\nARG DEVICE=cpu\n" in DOCKERFILE
    assert DockerServer(repository).image == f"hfx-triton:{MINIMUM_SECURE}-cpu"


def test_the_build_is_run_in_the_root_and_given_no_more_than_the_image_holds(repository: Path) -> None:
    line = DockerServer(repository).image_command()
    assert values(line, "--file") == ["docker/Dockerfile"]
    assert line[-1] == "."
    copied = re.findall(r"^COPY (?:--\S+ )*(.*) \S+$", DOCKERFILE, re.MULTILINE)
    paths = [path for line in copied for path in line.split()]
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert set(sent) <= set(paths)
    assert all(any(Path(path).is_relative_to(entry) for entry in sent) for path in paths)
    assert all((ROOT / path).exists() for path in paths)


def test_the_health_check_is_the_probe_at_the_ports_that_triton_has_in_the_container() -> None:
    check = json.loads(re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)[0])
    assert f"PYTHONPATH={Path(copied_to('liveness')).parent}" in check
    assert check[-3:] == ["liveness", "http://127.0.0.1:8000", "http://127.0.0.1:8002/metrics"]


def test_an_image_with_a_digest_is_used_as_it_is(repository: Path) -> None:
    image = "registry.example/hfx@sha256:" + "0" * 64
    server = DockerServer(repository, image=image)
    line = server.command()
    assert line[line.index("tritonserver") - 1] == image
    assert server.image_command() == ["docker", "pull", image]


def test_an_unknown_release_and_an_empty_repository_are_refused(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"99\.01"):
        DockerServer(repository, triton="99.01")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RepositoryError, match="has no model"):
        DockerServer(tmp_path / "empty").command()


def test_without_an_engine_the_error_holds_the_line(repository: Path) -> None:
    if subprocess.run(["sh", "-c", "docker version"], capture_output=True, check=False).returncode == 0:
        pytest.skip("a docker engine runs here")
    server = DockerServer(repository)
    with pytest.raises(ServerError) as caught:
        server.start()
    line = caught.value.fix.splitlines()[-1]
    assert shlex.split(line)[:2] == ["docker", "run"]
    assert server.image in line


def dry_run(repository: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["serve", str(repository), "--with", "docker", "--dry-run", *words])
    return code, *capsys.readouterr()


def test_a_dry_run_needs_no_free_port(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = dry_run(repository, capsys, "--http-port", str(port))
    assert (code, err) == (0, "") and f"127.0.0.1:{port}" in out


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_dry_run_prints_two_lines_to_paste(repository: Path, capsys: pytest.CaptureFixture[str], device: str) -> None:
    code, out, err = dry_run(repository, capsys, "--device", device)
    build, run = map(shlex.split, out.splitlines())
    assert (code, err) == (0, "")
    assert build[:2] == ["docker", "build"]
    assert f"DEVICE={device}" in values(build, "--build-arg")
    assert run[:2] == ["docker", "run"]
    assert values(build, "--tag")[0] == run[run.index("tritonserver") - 1] == f"hfx-triton:26.07-{device}"
    assert f"--model-config-name={device}" in run
    assert values(run, "--gpus") == (["all"] if device == "gpu" else [])


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (["--triton", "26.07", "--max-body", "100"], [str(108 << 20)]),
        (["--triton", "26.07", "--max-body", "60"], [str(68 << 20)]),  # numbers of JSON are longer when they are binary
        (["--triton", "26.07"], []),
        (["--triton", "25.05", "--max-body", "100"], []),  # which does not know the option, and bounds nothing
        (["--image", "mine:1", "--max-body", "100"], []),  # of which the release is not known
    ],
)
def test_triton_accepts_the_largest_body_of_the_front(
    repository: Path, capsys: pytest.CaptureFixture[str], words: list[str], passed: list[str]
) -> None:
    code, out, _ = dry_run(repository, capsys, *words)
    run = shlex.split(out.splitlines()[1])
    assert code == 0
    assert [word.partition("=")[2] for word in run if word.startswith("--http-max-input-size")] == passed


def test_a_model_that_needs_a_later_release_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, minimum in (("old", "24.10"), ("new", "24.12")):
        manifest = replace(fill(tmp_path, name), triton=TritonTarget("24.10", minimum))
        write_manifest(manifest, tmp_path / name / "hfx.json")
    code, _, err = dry_run(tmp_path, capsys, "--triton", "24.10")
    assert code == UsageError.exit_code
    assert "'new' needs Triton 24.12; 24.10" in err
    assert "Use --triton 26.07" in err
    assert dry_run(tmp_path, capsys, "--triton", "24.10", "--models", "old")[0] == 0
    assert dry_run(tmp_path, capsys)[0] == 0
