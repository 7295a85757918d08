"""Finding and fetching perf_analyzer: what is said where it is not there, and that nothing half-made is left."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.errors import UsageError
from hfx.perf import cache
from hfx.perf.tools import install

RECORDED = Path(__file__).parent / "perf_recorded"
VERSION = (RECORDED / "perf_analyzer_version.txt").read_text()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with nothing in it, and a PATH without perf_analyzer."""
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path / "cache"


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("body", "message", "fix"),
    [
        ("echo not found", "it ended with code 0", "hfx perf tools perf_analyzer"),
        ("echo 'error while loading shared libraries: libb64.so.0d' >&2; exit 127", "libb64", "hfx[embedded]"),
    ],
)
def test_one_on_path_is_taken_if_it_runs(
    body: str, message: str, fix: str, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path / "bin" / "perf_analyzer", f"echo '{VERSION}' >&2; exit 99")
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}/usr/bin:/bin")
    assert install.find() == install.Program(path, "2.51.0", None)
    script(path, body)
    with pytest.raises(UsageError, match=message) as raised:
        install.find()
    assert fix in raised.value.fix


def test_an_install_that_fails_leaves_nothing_and_says_why(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(cache.FetchFailed, match="tritonclient"):
        install.fetch()
    assert cache.installed(install.NAME, install.PINS) is None
    assert [path.name for path in empty.iterdir()] == ["perf_analyzer-tritonclient-2.51.0.lock"]


def test_the_libraries_that_it_misses_come_from_the_wheel(empty: Path) -> None:
    pytest.importorskip("pytriton")
    script(empty / "perf_analyzer-tritonclient-2.51.0" / "bin" / "perf_analyzer", f"echo '{VERSION}' >&2")
    libraries = install.fetch().libraries
    assert libraries is not None
    assert sorted(each.name for each in libraries.iterdir()) == ["libb64.so.0d", "libcudart.so.12"]


def test_the_command_lists_every_tool(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "tools"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["tool", "builtin", "perf_analyzer", "locust"]
    assert "hfx perf tools perf_analyzer" in lines[2]
