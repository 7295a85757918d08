"""`hfx deploy check` of a folder names every file that differs from what was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.deploy import compose, docker, kserve, kubernetes
from hfx.deploy.deployment import Deployment, open_deployment
from hfx.deploy.folder import RECORD_FILE, hash_everything
from hfx.deploy.options import Cluster, Scale, Service
from hfx.deploy.sizing import size
from tests.rigs.files.repositories import build


@pytest.fixture
def written(tmp_path: Path) -> Path:
    docker.write(open_deployment(build(tmp_path / "repository"), ["m"]), tmp_path / "out")
    return tmp_path / "out"


def check(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, str], str]:
    """Return the exit code, the kind of each file that differs, and the stderr."""
    code = main(["deploy", "check", *map(str, words), "--json"])
    out, err = capsys.readouterr()
    return code, {each["path"]: each["kind"] for each in json.loads(out).get("differences", [])}, err


WRITERS: dict[str, Callable[[Deployment, Path], Any]] = {
    "kubernetes": lambda deployment, out: kubernetes.write(deployment, size(deployment, Scale(), {}), Cluster(), out),
    "kserve": lambda deployment, out: kserve.write(
        deployment, size(deployment, Scale(), {}), Service("s3://models/m", canary=10), out
    ),
    "compose": compose.write,
    "docker": docker.write,
}


@pytest.mark.parametrize("target", WRITERS)
def test_a_folder_as_it_was_written_has_no_differences(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    WRITERS[target](open_deployment(build(tmp_path / "repository"), ["m"]), tmp_path / "out")
    record = json.loads((tmp_path / "out/hfx-deploy.json").read_text(encoding="utf-8"))
    assert main(["deploy", "check", str(tmp_path / "out"), "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert (checked["differences"], checked["findings"]) == ([], [])
    assert checked["files"] == len(record["files"]) > 0


def test_changed_missing_added_and_linked_files_are_named(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (written / "Dockerfile").open("a", encoding="utf-8") as file:
        file.write("RUN true\n")
    (written / "run.sh").unlink()
    (written / "models/m/1/note.txt").write_text("mine", encoding="utf-8")
    (written / "models/n").symlink_to("m")
    weights = written / "models/m_net/1/model.onnx"
    content = weights.read_bytes()
    weights.unlink()
    weights.symlink_to("/dev/zero")
    code, found, err = check(capsys, written)
    assert code == 7 and "hfx deploy docker" in err
    assert found == {
        "Dockerfile": "changed",
        "run.sh": "missing",
        "models/m/1/note.txt": "unlisted",
        "models/n": "unlisted",
        "models/m_net/1/model.onnx": "outside",
    }
    weights.unlink()
    weights.write_bytes(bytes(len(content)))
    assert check(capsys, written)[1]["models/m_net/1/model.onnx"] == "changed"


def test_a_record_that_was_written_anew_does_not_hide_a_changed_model(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (written / "models/m_tokenize/1/model.py").write_text("changed", encoding="utf-8")
    record = json.loads((written / RECORD_FILE).read_text())
    files = {name: {"sha256": entry.sha256, "size": entry.size} for name, entry in hash_everything(written).items()}
    (written / RECORD_FILE).write_text(json.dumps(record | {"files": files}), encoding="utf-8")
    assert check(capsys, written)[:2] == (7, {"models/m_tokenize/1/model.py": "changed"})


@pytest.mark.parametrize("damage", ["[]", "{}", '{"format": 1, "target": "docker", "models": {}, "files": {"a": 1}}'])
def test_a_damaged_record_is_refused(written: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    (written / RECORD_FILE).write_text(damage, encoding="utf-8")
    assert check(capsys, written)[0] == 3


def test_checking_a_folder_refuses_other_folders_and_server_options(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = check(capsys, written / "models")
    assert code == 2 and RECORD_FILE in err
    code, _, err = check(capsys, written / "none")
    assert code == 2 and f"There is no folder {written / 'none'}." in err
    assert main(["deploy", "check", ""]) == 2 and "has no name" in capsys.readouterr().err
    code, _, err = check(capsys, written, "--wait", "1")
    assert code == 2 and "--wait" in err
    code, _, err = check(capsys, written, "m")
    assert code == 2 and "is a folder" in err
