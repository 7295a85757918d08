"""`hfx deploy docker`: refused options, the written folder, and the replacement of an earlier output."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.deploy import docker
from hfx.deploy.arch import MACHINES
from hfx.deploy.deployment import Deployment, open_deployment
from hfx.deploy.folder import RECORD_FILE, output_folder
from hfx.deploy.options import Arch
from hfx.errors import HfxError, ModelCorrupt, ModelMissing, RepositoryError, UsageError
from hfx.manifest import Precision, hash_file, read_manifest, write_manifest
from hfx.repository.lint import lint
from tests.rigs.files.repositories import build, seal

HOSTILE = ("a b", "a\nRUN id", 'a"', "$(id)", "a;id", "../a", "-a", "A", "", "a" * 600, "ä")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return build(tmp_path / "repository")


@pytest.fixture
def deployment(repository: Path) -> Deployment:
    return open_deployment(repository, ["m"])


@pytest.mark.parametrize("text", HOSTILE)
def test_text_that_a_file_or_a_shell_could_read_otherwise_is_refused(repository: Path, text: str) -> None:
    with pytest.raises(HfxError):
        open_deployment(repository, [text])
    if text:  # empty: the default
        for option in ("name", "image"):
            with pytest.raises(UsageError, match=r"be a deployment's name|not a container image"):
                open_deployment(repository, ["m"], **{option: text})  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"drain": -1}, {"cpus": 0}, {"triton": "24.10;id"}, {"device": "tpu"}])
def test_numbers_tags_and_devices_are_checked(repository: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        open_deployment(repository, ["m"], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "image", ["hfx-triton:26.07-cpu", "registry.example:5000/team/m_x:1", f"a/b@sha256:{'0' * 64}"]
)
def test_references_of_images_are_taken(repository: Path, image: str) -> None:
    assert open_deployment(repository, ["m"], image=image).image == image


def test_a_model_that_is_missing_changed_or_of_another_device_is_refused(repository: Path) -> None:
    with pytest.raises(ModelMissing):
        open_deployment(repository, ["n"])
    seal(repository, Precision("fp32", None))
    with pytest.raises(UsageError, match="not exported for gpu"):
        open_deployment(repository, ["m"], device="gpu")
    (repository / "m_tokenize/1/model.py").write_text("changed")
    with pytest.raises(ModelCorrupt, match=r"m_tokenize/1/model\.py"):
        open_deployment(repository, ["m"])


def test_the_models_are_copied_whole_and_the_record_has_every_file(deployment: Deployment, tmp_path: Path) -> None:
    docker.write(deployment, tmp_path / "out")
    assert read_manifest(tmp_path / "out/models/m/hfx.json") == deployment.models[0].manifest
    assert [finding for finding in lint(tmp_path / "out/models") if finding.severity == "error"] == []
    files = {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    record = json.loads((tmp_path / "out" / RECORD_FILE).read_text())
    assert {tmp_path / "out" / name for name in record["files"]} == files - {tmp_path / "out" / RECORD_FILE}
    for name, entry in record["files"].items():
        found = hash_file(tmp_path / "out" / name)
        assert entry == {"sha256": found.sha256, "size": found.size}
    assert all(path.stat().st_nlink == 1 for path in files), "links would let an edit change the published model"


@pytest.mark.parametrize(("device", "arch"), [("cpu", "amd64"), ("cpu", "arm64"), ("gpu", "amd64")])
def test_hostile_texts_of_a_manifest_do_not_reach_dockerfile_or_shell(
    repository: Path, tmp_path: Path, device: str, arch: Arch
) -> None:
    # What a manifest says about its precision is any text.
    path = repository / "m/hfx.json"
    hostile = "int8\"; $(id) `id` \\ '"
    write_manifest(replace(read_manifest(path), precision=Precision(hostile, hostile)), path)
    docker.write(open_deployment(repository, ["m"], device=device, arch=arch), tmp_path / "out")
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, tmp_path / "out/Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert "$(id)" not in (tmp_path / "out/run.sh").read_text() + (tmp_path / "out/Dockerfile").read_text()

    fake = tmp_path / "bin/docker"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    path_variable = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / "out/run.sh", "--detach"], env={"PATH": path_variable}, capture_output=True, text=True
    )
    words = done.stdout.splitlines()
    assert words[0] == "run" and words[-2:] == ["--detach", f"m:26.07-{device}"], done.stderr
    assert ("--gpus" in words) == (device == "gpu")
    assert "127.0.0.1:8000:8000" in words and "--read-only" in words
    assert words[words.index("--platform") + 1] == f"linux/{arch}"
    builds = [line for line in (tmp_path / "out/README.md").read_text().splitlines() if line.startswith("docker build")]
    assert len(builds) == 2 and all(f" --platform linux/{arch} " in line for line in builds)


def test_the_command_prints_what_it_wrote_and_refuses_with_its_exit_codes(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["deploy", "docker", "m", "--repository", str(repository), "--output", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["models"], value["device"], value["triton"]) == (["m"], "cpu", "26.07")
    assert MACHINES[value["arch"]] == platform.machine()
    assert json.loads((tmp_path / "out" / RECORD_FILE).read_text())["arch"] == value["arch"]
    assert value["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert main(words) == UsageError.exit_code
    assert "--force" in json.loads(capsys.readouterr().out)["error"]["fix"]
    assert main(["deploy", "docker", "n", *words[3:-1]]) == ModelMissing.exit_code


def test_an_output_replaces_only_what_the_command_wrote_and_only_as_a_whole(
    deployment: Deployment, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    docker.write(deployment, output)
    with pytest.raises(UsageError, match="--force"):
        docker.write(deployment, output)
    before = (output / "Dockerfile").read_bytes()
    with (
        pytest.raises(RepositoryError, match="absent"),
        output_folder(output, "docker", deployment, force=True) as folder,
    ):
        (folder / "absent" / "half").write_text("half")
    assert (output / "Dockerfile").read_bytes() == before
    docker.write(replace(deployment, drain=5), output, force=True)
    assert (output / "Dockerfile").read_bytes() != before
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="did not write"):
        docker.write(deployment, foreign, force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"repository", "out", "foreign"}
