"""The folder of `hfx deploy docker`, run by the lines of the tutorial, and the Job that verifies it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.containers import HTTP, Container, answers, running, typed
from tests.rigs.files.documents import blocks, commands

pytestmark = pytest.mark.container

TUTORIAL = "docs/tutorial-deployment.md"


@pytest.fixture(scope="module")
def deployed(image: str, folder: Path) -> Path:
    """The folder in which the tutorial's file-writing lines were run."""
    lines = [line for line in commands(TUTORIAL, "hfx deploy") if "http" not in line]
    typed("\n".join(lines), folder)
    return folder


@pytest.fixture(scope="module")
def container(both: Path) -> Iterator[Container]:
    with running("./both/run.sh", both) as served:
        yield served


def test_the_lines_of_the_tutorial_build_run_check_and_stop(deployed: Path) -> None:
    [lines] = blocks(TUTORIAL, "sh")
    try:
        said = typed(lines, deployed)
        assert "sentiment: " in said, said
    finally:
        subprocess.run(["docker", "rm", "--force", "sentiment"], capture_output=True, check=False)


def test_the_container_answers_within_the_confinement_of_run_sh(container: Container) -> None:
    answers(container)
    host = container.state(".HostConfig")
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and host["Memory"] and host["NanoCpus"]
    assert container.exec("id", "-u").strip() == "1000"


def test_the_verification_job_passes_within_its_confinement(container: Container, both: Path) -> None:
    typed("hfx deploy kubernetes sentiment stories --name both --output verified --image both:26.07-cpu", both)
    job = yaml.safe_load((both / "verified/verify/job.yaml").read_text())["spec"]["template"]["spec"]
    [spec] = job["containers"]
    arguments = [word.replace("http://both:8000", HTTP) for word in spec["args"]]
    line = " ".join(
        ["docker run --rm", *confinement(job, spec), f"--network container:{container.name}", spec["image"], *arguments]
    )
    with running(line, both, serves=False) as checking:
        assert checking.exit_code == 0, checking.log
        assert "sentiment: " in checking.log and "stories: " in checking.log


def confinement(pod: Any, spec: Any) -> list[str]:
    """Return docker's options for the container `spec` of a pod."""
    rights, volumes = spec["securityContext"], {volume["name"]: volume for volume in pod["volumes"]}
    assert rights["readOnlyRootFilesystem"] and rights["capabilities"] == {"drop": ["ALL"]}
    assert not rights["allowPrivilegeEscalation"]
    sizes = {mount["mountPath"]: volumes[mount["name"]]["emptyDir"]["sizeLimit"] for mount in spec["volumeMounts"]}
    return [
        "--read-only --cap-drop ALL --security-opt no-new-privileges",
        f"--user {rights['runAsUser']}:{rights['runAsGroup']}",
        f"--memory {spec['resources']['limits']['memory'].removesuffix('i')}",
        *(f"--env {each['name']}={each['value']}" for each in spec["env"]),
        *(f"--tmpfs {path}:size={size.removesuffix('i')}" for path, size in sizes.items()),
    ]
