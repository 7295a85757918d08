"""The cache of what is fetched and made: whole or not at all, once, and clear words where it can't be."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from bench.peers.packages import Packages, use
from hfx.errors import FetchFailed, HfxError
from hfx.perf import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


def test_made_once_whole_or_not_at_all(folder: Path) -> None:
    made: list[Path] = []

    def build(staging: Path) -> None:
        made.append(staging)
        (staging / "file").write_text("whole")

    def broken(staging: Path) -> None:
        (staging / "file").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.made("models/one", broken)
    assert not [path for path in (folder / "models").iterdir() if path.suffix != ".lock"]
    threads = [threading.Thread(target=cache.made, args=("models/one", build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (folder / "models" / "one" / "file").read_text() == "whole"


def test_packages_that_can_not_be_had(offline: None, folder: Path) -> None:
    wanted = Packages("thing", ("no-such-package-of-hfx==1.0", "another==2.0"))
    with pytest.raises(FetchFailed) as failure:
        wanted.fetch()
    assert "The packages of thing (no-such-package-of-hfx==1.0 and 1 more) can't be fetched" in failure.value.message
    assert "pip download no-such-package-of-hfx==1.0" in failure.value.fix
    assert str(folder) in failure.value.fix
    assert isinstance(failure.value, HfxError)
    assert str(failure.value) == failure.value.message  # a line in notes
    assert wanted.installed() is None
    assert wanted.remove() is False


def test_a_folder_that_can_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchFailed, match="Nothing can be kept in"):
        cache.made("thing", lambda folder: None)


def test_what_is_there_is_not_fetched_again(offline: None, folder: Path) -> None:
    one = Packages("thing", ("thing==1.0",))
    (folder / "thing-thing-1.0").mkdir(parents=True)
    assert one.fetch() == one.installed() == folder / "thing-thing-1.0"
    assert one.versions == {"thing": "1.0"}
    assert one.remove() is True
    assert one.installed() is None


def test_packages_come_before_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/environment"])
    use("/first:/second")
    assert sys.path == ["/first", "/second", "/environment"]
    use("")
    assert sys.path == ["/first", "/second", "/environment"]
