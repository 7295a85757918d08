"""The next command finds what a publication has left that was killed, and makes the repository whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hfx.errors import RepositoryError
from hfx.manifest import member_folders
from hfx.repository import recover, remove
from tests.rigs.files.manifests import fill
from tests.unit.repository.test_publish import export, snapshot


def killed(repository: Path, moves: int) -> tuple[dict[str, bytes | None], Path]:
    """Leave what a publication leaves that is killed after some moves. Return the state before, and the staging."""
    export(repository, members=("_net", "_postprocess"))
    before, staging = snapshot(repository), repository / ".hfx-staging-m-killed"
    (staging / "old").mkdir(parents=True)
    (staging / "new").mkdir()
    fill(staging / "new", "m", ("_net", "_tokenize"), "two")
    old, new = ("m", "m_net", "m_postprocess"), ("m_net", "m_tokenize", "m")
    (staging / "journal.json").write_text(json.dumps({"name": "m", "old": old, "new": new}))
    steps = [(repository / each, staging / "old" / each) for each in old]
    for source, target in [*steps, *((staging / "new" / each, repository / each) for each in new)][:moves]:
        source.rename(target)
    return before, staging


@pytest.mark.parametrize("moves", range(7))
def test_an_unfinished_publication_is_undone_by_the_next_command(tmp_path: Path, moves: int) -> None:
    before, _ = killed(tmp_path / "a", moves)
    assert recover(tmp_path / "a") == ["rolled back the unfinished export of m"]
    assert snapshot(tmp_path / "a") == before
    killed(tmp_path / "b", moves)
    export(tmp_path / "b", members=("_net", "_tokenize"), content="three", replace=True)
    assert {path.name for path in (tmp_path / "b").iterdir()} == {".hfx-lock", "m", "m_net", "m_tokenize"}
    killed(tmp_path / "c", moves)
    assert remove(tmp_path / "c", "m") == ("m", "m_net", "m_postprocess")
    assert snapshot(tmp_path / "c") == {}


def test_a_publication_that_was_committed_stays(tmp_path: Path) -> None:
    _, staging = killed(tmp_path, moves=6)
    (staging / "journal.json").rename(staging / "committed.json")
    new = {path: content for path, content in snapshot(tmp_path).items() if not path.startswith(staging.name)}
    assert recover(tmp_path) == ["deleted the version before of m"]
    assert snapshot(tmp_path) == new and "m_tokenize" in new


def test_a_version_is_not_restored_over_another_folder(tmp_path: Path) -> None:
    killed(tmp_path, moves=2)
    (tmp_path / "m_net").mkdir()
    for _ in range(2):
        with pytest.raises(RepositoryError, match="another 'm_net' is in its place"):
            recover(tmp_path)
    (tmp_path / "m_net").rmdir()
    assert recover(tmp_path) == ["rolled back the unfinished export of m"]


def test_a_read_only_repository_is_left_alone_unless_a_model_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # the tests may run as root
    (tmp_path / ".hfx-staging-a").mkdir()
    assert recover(tmp_path) == [] and [path.name for path in tmp_path.iterdir()] == [".hfx-staging-a"]
    killed(tmp_path, moves=3)
    (tmp_path / ".hfx-staging-a").mkdir()
    assert "rolled back the unfinished export of m" in recover(tmp_path)


def test_a_repository_without_leftovers_is_not_written(tmp_path: Path) -> None:
    assert recover(tmp_path) == [] and list(tmp_path.iterdir()) == []


def test_recovery_goes_on_if_folders_are_already_deleted(tmp_path: Path) -> None:
    before, _ = killed(tmp_path, moves=6)
    shutil.rmtree(tmp_path / "m_tokenize")
    assert recover(tmp_path) == ["rolled back the unfinished export of m"]
    assert snapshot(tmp_path) == before


def test_a_publication_of_every_kind_of_folder_is_undone(tmp_path: Path) -> None:
    staging = tmp_path / ".hfx-staging-m-killed"
    for folder in member_folders("m"):
        (staging / "new" / folder).mkdir(parents=True)
    (staging / "journal.json").write_text(json.dumps({"name": "m", "old": [], "new": member_folders("m")}))
    assert recover(tmp_path) == ["rolled back the unfinished export of m"]
