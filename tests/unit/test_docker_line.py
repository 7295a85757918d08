"""The `docker run` line: complete, bound to this machine, without rights, and the same thing that people see."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from hfx.errors import RepositoryError, ServerError, UsageError
from hfx.releases import release
from hfx.triton import DockerServer
from tests.triton.toy_models import write_toy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "repository")


def values(line: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(line) if name == option]


def test_ports_are_published_on_this_machine_only(repository: Path) -> None:
    line = DockerServer(repository, http_port=0).command()
    published = values(line, "--publish")
    assert len(published) == 3
    assert all(address.startswith("127.0.0.1:") for address in published)
    assert [address.rsplit(":", 1)[1] for address in published] == ["8000", "8001", "8002"]


def test_the_urls_are_those_of_the_line(repository: Path) -> None:
    server = DockerServer(repository)
    published = values(server.command(), "--publish")
    assert server.http_url == "http://" + published[0].rpartition(":")[0]
    assert server.grpc_url == published[1].rpartition(":")[0]
    assert values(server.command(), "--publish") == published


def test_each_model_is_mounted_by_itself_and_read_only(repository: Path) -> None:
    (repository / ".staging-x").mkdir()
    mounts = values(DockerServer(repository).command(), "--mount")
    assert mounts == [
        f"type=bind,source={repository / name},target=/models/{name},readonly" for name in ("toy", "toy_tokenize")
    ]


def test_chosen_models_bring_their_members(repository: Path) -> None:
    write_toy(repository, "other")
    mounts = values(DockerServer(repository, models=["toy"]).command(), "--mount")
    assert [mount.split("target=/models/")[1] for mount in mounts] == ["toy,readonly", "toy_tokenize,readonly"]


def test_a_path_with_a_comma_stays_one_field(tmp_path: Path) -> None:
    repository = write_toy(tmp_path / 'a,b "c"')
    mount = values(DockerServer(repository).command(), "--mount")[0]
    assert f'"source={tmp_path}/a,b ""c""/toy"' in mount


def test_the_container_has_no_rights(repository: Path) -> None:
    line = DockerServer(repository).command()
    user = values(line, "--user")[0]
    assert user == (f"{os.getuid()}:{os.getgid()}" if os.getuid() else "1000:1000")
    assert values(line, "--cap-drop") == ["ALL"]
    assert "--privileged" not in line
    assert values(line, "--shm-size")
    assert values(line, "--ulimit") == ["stack=536870912"]


@pytest.mark.parametrize(("device", "gpus"), [("cpu", []), ("gpu", ["all"])])
def test_the_device_picks_the_configuration_and_the_gpus(repository: Path, device: str, gpus: list[str]) -> None:
    line = DockerServer(repository, device=device).command()
    assert f"--model-config-name={device}" in line
    assert values(line, "--gpus") == gpus


def test_triton_serves_what_is_written_and_hands_out_no_key(repository: Path) -> None:
    arguments = DockerServer(repository).command()
    arguments = arguments[arguments.index("tritonserver") :]
    assert {"--disable-auto-complete-config", "--model-control-mode=none", "--model-repository=/models"} <= set(
        arguments
    )
    restricted = [argument for argument in arguments if "restricted" in argument]
    assert [argument.split("=")[0] for argument in restricted] == [
        "--http-restricted-api",
        "--grpc-restricted-protocol",
    ]
    assert all("shared-memory,trace,logging:hfx-key=" in argument for argument in restricted)


def test_the_image_is_built_from_the_release(repository: Path) -> None:
    server = DockerServer(repository, triton="24.12")
    assert server.image in server.command()
    assert server.image == "hfx-triton:24.12"
    assert f"BASE={release('24.12').image}" in server.build_command()


def test_the_base_of_the_dockerfile_is_the_default_release() -> None:
    dockerfile = ROOT / "docker" / "Dockerfile"
    assert f"ARG BASE={release('24.10').image}\n" in dockerfile.read_text()


def test_the_build_is_run_in_the_root_and_given_no_more_than_the_image_holds(repository: Path) -> None:
    line = DockerServer(repository).build_command()
    assert values(line, "--file") == ["docker/Dockerfile"]
    assert line[-1] == "."
    copied = re.findall(r"^COPY (?:--\S+ )*(\S+) ", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    sent = [entry for entry in (ROOT / ".dockerignore").read_text().splitlines() if not entry.startswith("#")]
    assert sent == ["*", *(f"!{path}" for path in copied)]
    assert all((ROOT / path).is_file() for path in copied)


def test_the_health_check_is_the_canary_at_the_ports_that_triton_has_in_the_container() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", "")
    check = json.loads(re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", dockerfile, re.MULTILINE)[0])
    assert re.search(rf"^COPY \S+ \S+/canary.py {check[2]}$", dockerfile, re.MULTILINE)
    assert check[3:] == ["http://127.0.0.1:8000", "http://127.0.0.1:8002/metrics"]


def test_an_image_with_a_digest_is_used_as_it_is(repository: Path) -> None:
    image = "registry.example/hfx@sha256:" + "0" * 64
    line = DockerServer(repository, image=image).command()
    assert line[line.index("tritonserver") - 1] == image


def test_an_unknown_release_is_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match=r"99\.01"):
        DockerServer(repository, triton="99.01")


def test_an_empty_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="holds no model"):
        DockerServer(tmp_path).command()


def test_without_an_engine_the_error_holds_the_line(repository: Path) -> None:
    if subprocess.run(["sh", "-c", "docker version"], capture_output=True, check=False).returncode == 0:
        pytest.skip("a docker engine runs here")
    server = DockerServer(repository)
    with pytest.raises(ServerError) as caught:
        server.start()
    line = caught.value.fix.splitlines()[-1]
    assert shlex.split(line)[:2] == ["docker", "run"]
    assert server.image in line
