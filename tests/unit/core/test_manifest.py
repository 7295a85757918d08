"""hfx.json: exact round trip, hashes, and verification of files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import RepositoryError
from hfx.manifest import (
    FileEntry,
    Manifest,
    hash_file,
    hash_folder,
    read_manifest,
    to_json,
    verify_files,
    write_manifest,
)
from hfx.names import Task
from tests.rigs.files.manifests import fill, instead, link, manifest


def test_a_manifest_is_read_back_exactly_as_written(tmp_path: Path) -> None:
    complete = manifest(files={"m_net/1/model.onnx": FileEntry("b" * 64, 2**40)}, task=Task.QUESTION_ANSWERING)
    write_manifest(complete, tmp_path / "hfx.json")
    again = read_manifest(tmp_path / "hfx.json")
    assert again == complete
    assert isinstance(again.task, Task)
    assert to_json(again) == (tmp_path / "hfx.json").read_text(encoding="utf-8")


def test_the_file_has_every_field_with_the_format_first() -> None:
    data = json.loads(to_json(manifest()))
    assert next(iter(data)) == "format"
    assert data.keys() == {entry.name for entry in fields(Manifest)}
    assert data["source"] == {"id": "org/Modell-ü", "revision": "0123abcd", "sha256": "a" * 64}


@pytest.mark.parametrize(
    "changes",
    [
        {"parity": {"x": float("nan")}},
        {"folders": ("m", "other")},
        {"choices": {"x": object()}},
    ],
)
def test_a_manifest_that_could_not_be_read_is_not_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(RepositoryError):
        write_manifest(manifest(**changes), tmp_path / "hfx.json")
    assert not (tmp_path / "hfx.json").exists()


def test_a_file_larger_than_a_chunk_is_hashed_as_a_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "file").write_bytes(data)
    assert hash_file(tmp_path / "file") == FileEntry(hashlib.sha256(data).hexdigest(), len(data))


def test_a_folder_is_hashed_without_its_manifest_and_bytecode(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "m/1/__pycache__").mkdir()
    (tmp_path / "m/1/__pycache__/model.pyc").touch()
    assert list(hash_folder(tmp_path / "m", tmp_path)) == ["m/1/data.bin", "m/config.pbtxt"]


def test_a_link_is_not_hashed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(RepositoryError, match="not a regular file"):
        hash_folder(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (Path.unlink, "missing"),
        (lambda path: path.write_bytes(b""), "changed"),
        (lambda path: path.write_bytes(b"O" + path.read_bytes()[1:]), "changed"),
        (instead(Path.mkdir), "changed"),
        (link("/etc/hostname"), "outside"),
        (link("data.bin"), "unreadable"),
        (lambda path: path.with_name("more").touch(), "unlisted"),
        (lambda path: path.with_name("more").symlink_to("/etc"), "unlisted"),
    ],
)
def test_damage_is_found_and_named(tmp_path: Path, damage: Callable[[Path], object], kind: str) -> None:
    complete = fill(tmp_path)
    assert verify_files(complete, tmp_path) == []
    damage(tmp_path / "m_net/1/data.bin")
    (problem,) = verify_files(complete, tmp_path)
    assert (problem.kind, problem.path) == (kind, "m_net/1/more" if kind == "unlisted" else "m_net/1/data.bin")
    assert problem.path in problem.message


def test_a_missing_folder_is_missing_files(tmp_path: Path) -> None:
    complete = fill(tmp_path)
    (tmp_path / "m_net").rename(tmp_path / "away")
    assert {problem.kind for problem in verify_files(complete, tmp_path)} == {"missing"}
