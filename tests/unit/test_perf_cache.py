"""The cache of what is fetched and made: whole or not at all, once, and clear words where it can't be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hfx.errors import FetchFailed
from hfx.perf import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
    with ThreadPoolExecutor(4) as pool:
        folders = {*pool.map(cache.made, ["models/one"] * 4, [build] * 4)}
    assert len(made) == 1 and folders == {folder / "models" / "one"}
    assert (folder / "models" / "one" / "file").read_text() == "whole"


def test_a_folder_that_can_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchFailed, match="Nothing can be kept in"):
        cache.made("thing", lambda folder: None)


def test_what_is_there_is_not_fetched_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    kept, pins = folder / "thing-thing-1.0", ("thing==1.0",)
    with pytest.raises(FetchFailed, match=r"thing==1\.0") as failure:
        cache.packages("thing", pins)
    assert str(kept) in failure.value.fix and cache.installed("thing", pins) is None
    kept.mkdir()
    assert cache.packages("thing", pins) == cache.installed("thing", pins) == kept
