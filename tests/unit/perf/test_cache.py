"""Cached downloads and builds: whole or absent, made once, clear errors; and the search for perf_analyzer."""

from __future__ import annotations

import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.errors import FetchFailed, UsageError
from hfx.perf import cache
from hfx.perf.tools import perf_analyzer

RECORDED = Path(__file__).parent / "recorded"
VERSION = (RECORDED / "perf_analyzer_version.txt").read_text()


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a PATH without perf_analyzer."""
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path / "cache"


def test_a_cached_folder_is_made_once_and_wholly_or_not_at_all(folder: Path) -> None:
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


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchFailed, match="Nothing can be kept in"):
        cache.made("thing", lambda folder: None)


def test_cached_packages_are_not_fetched_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    kept, pins = folder / "thing-thing-1.0", ("thing==1.0",)
    with pytest.raises(FetchFailed, match=r"thing==1\.0") as failure:
        cache.packages("thing", pins)
    assert str(kept) in failure.value.fix and cache.installed("thing", pins) is None
    kept.mkdir()
    assert cache.packages("thing", pins) == cache.installed("thing", pins) == kept


@pytest.mark.parametrize("body", ["echo WARNING: slow >&2; exec sleep 60", "exec sleep 60", "kill -9 $$"])
def test_a_pip_that_does_not_end_or_is_killed_is_an_error(
    body: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(script(tmp_path / "python", body)))
    monkeypatch.setattr(cache, "INSTALL_SECONDS", 1)
    with pytest.raises(FetchFailed, match=r"thing==1\.0"):
        cache.packages("thing", ("thing==1.0",))
    assert not (folder / "thing-thing-1.0").exists()


# perf_analyzer


@pytest.mark.parametrize(
    ("body", "message", "fix"),
    [
        ("echo not found", "it ended with code 0", "hfx perf tools perf_analyzer"),
        ("echo 'error while loading shared libraries: libb64.so.0d' >&2; exit 127", "libb64", "[embedded]"),
    ],
)
def test_a_perf_analyzer_on_path_is_used_if_it_runs(
    body: str, message: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path / "bin" / "perf_analyzer", f"echo '{VERSION}' >&2; exit 99")
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}/usr/bin:/bin")
    assert perf_analyzer.find() == perf_analyzer.Program(path, "2.51.0", None)
    script(path, body)
    with pytest.raises(UsageError, match=message) as raised:
        perf_analyzer.find()
    assert fix in raised.value.fix


@pytest.mark.skipif(find_spec("pytriton") is None, reason="the wheel has the libraries")
def test_missing_libraries_of_perf_analyzer_come_from_pytritons_wheel(folder: Path) -> None:
    script(folder / "perf_analyzer-tritonclient-2.51.0" / "bin" / "perf_analyzer", f"echo '{VERSION}' >&2")
    program = perf_analyzer.fetch()
    libraries = program.libraries
    assert libraries is not None and program.command == f"LD_LIBRARY_PATH={libraries} {program.path}"
    assert sorted(each.name for each in libraries.iterdir()) == ["libb64.so.0d", "libcudart.so.12"]


def test_the_command_lists_every_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "tools"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["tool", "builtin", "perf_analyzer", "locust"]
    assert "hfx perf tools perf_analyzer" in lines[2]
