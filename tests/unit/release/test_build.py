"""`python -m release build`: the same bytes in any folder at any time, from what is committed alone."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hfx.errors import UsageError
from release import Refused
from release.archives import Members, read_sdist, read_wheel, tar, unzipped, write_sdist
from release.build import build
from release.sbom import FILE, LIBRARY
from release.verify import verify
from tests.rigs.files.checkouts import copy_small_checkout
from tests.unit.release.test_verify import record_of, write_sums

pytestmark = pytest.mark.slow

COMMITTER = {"GIT_AUTHOR_DATE": "@1700000000 +0900", "GIT_COMMITTER_DATE": "@1700000000 +0900"}


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    subprocess.run(["git", *who, *words], cwd=folder, env=os.environ | COMMITTER, check=True, capture_output=True)


def clone(folder: Path) -> Path:
    """A repository of the small checkout, with one commit."""
    copy_small_checkout(folder)
    git(folder, "init", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--message=release: write it")
    return folder


def command(checkout: Path, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(checkout), **variables}
    words = (sys.executable, "-m", "release", *words)
    return subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone(tmp_path_factory.mktemp("clone") / "hfx")


@pytest.fixture(scope="module")
def released(checkout: Path) -> Path:
    """The folder dist of a release, which must not be changed."""
    done = command(checkout, "build")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("dist: the release of ")
    return checkout / "dist"


@pytest.fixture
def dist(released: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released, tmp_path / "dist"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.full
def test_another_clone_at_another_time_builds_the_same_bytes(released: Path, tmp_path: Path) -> None:
    """Not even the umask, the time zone, the language, the mode of the files and their dates change a byte."""
    other = clone(tmp_path / "another" / "and" / "a" / "much" / "longer" / "path")
    for path in other.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path, (1_000_000_000, 1_000_000_000))
            path.chmod(0o600 | path.stat().st_mode & stat.S_IXUSR)
    before = os.umask(0o077)
    try:
        done = command(
            other, "build", tmp_path / "dist", TZ="Asia/Tokyo", LC_ALL="C", SOURCE_DATE_EPOCH="1", CFLAGS="-g"
        )
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "dist") == contents(released)


@pytest.mark.full
def test_the_files_name_neither_the_folder_nor_the_time_nor_the_user_of_a_build(released: Path, checkout: Path) -> None:
    wheel, sources = members(released)
    for name, member in {**wheel, **sources}.items():
        assert str(checkout).encode() not in member.content and b"/hfx-release-" not in member.content, name
        assert stat.S_IMODE(member.mode) in {0o644, 0o664, 0o755}, name
    with zipfile.ZipFile(next(released.glob("*.whl"))) as archive:
        assert {info.date_time for info in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.full
def test_the_wheel_has_its_sbom_and_the_native_library(released: Path) -> None:
    wheel, _ = members(released)
    [name] = [name for name in wheel if name.endswith(FILE)]
    assert name.split("/")[0].endswith(".dist-info") and json.loads(wheel[name].content)["specVersion"] == "1.6"
    assert wheel[LIBRARY].content.startswith(b"\x7fELF")


@pytest.mark.full
def test_a_release_is_verified_from_its_files_alone(dist: Path, checkout: Path) -> None:
    done = command(checkout, "verify", dist)
    assert (done.returncode, done.stderr) == (0, "")
    assert "builds the same" in done.stdout.splitlines()[-1]


@pytest.mark.full
def test_other_tools_than_those_of_the_release_are_refused(dist: Path, tmp_path: Path) -> None:
    other = copy_small_checkout(tmp_path / "hfx")
    requirements = other / "release/requirements.txt"
    requirements.write_text(requirements.read_text().replace("setuptools==", "setuptools==1"))
    done = command(other, "verify", dist)
    assert done.returncode == 1 and "This environment has setuptools " in done.stderr
    assert "pip install --require-hashes" in done.stderr


def members(folder: Path) -> tuple[Members, Members]:
    return read_wheel(next(folder.glob("*.whl"))), read_sdist(next(folder.glob("*.tar.gz")))[0]


def rewrite_wheel(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change files of a wheel and its RECORD, as an attacker would, and keep the dates and the modes."""
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename: info for info in archive.infolist()}
        files = {name: archive.read(name) for name in infos}
    [record] = [name for name in files if name.endswith("/RECORD")]
    del files[record]
    change(files)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(infos.get(name, infos["hfx/__init__.py"]), data)
        archive.writestr(infos[record], record_of(files).replace(b"hfx-1.0.dist-info/RECORD", record.encode()))
    path.write_bytes(content.getvalue())


@pytest.mark.full
def test_a_wheel_that_its_sources_do_not_build_is_refused_with_the_file(dist: Path) -> None:
    rewrite_wheel(next(dist.glob("*.whl")), lambda files: files.update({"hfx/errors.py": b"import os\n"}))
    write_sums(dist)
    with pytest.raises(Refused, match=r"it differs in hfx/errors\.py\."):
        verify(dist, lambda line: None)


@pytest.mark.full
def test_a_wheel_with_bytes_before_its_files_is_refused(dist: Path) -> None:
    wheel = next(dist.glob("*.whl"))
    wheel.write_bytes(b"#!/bin/sh\n" + wheel.read_bytes())
    write_sums(dist)
    with pytest.raises(Refused, match="its files are equal, but"):
        verify(dist, lambda line: None)


@pytest.mark.full
def test_changed_sources_are_refused_with_the_file(dist: Path) -> None:
    sdist = next(dist.glob("*.tar.gz"))
    sources, date = read_sdist(sdist)
    name = next(name for name in sources if name.endswith("hfx/native/choose.cpp"))
    sources[name] = type(sources[name])(sources[name].content + b"\nextern int more;\nint more;\n", sources[name].mode)
    write_sdist(sdist, sources, date)
    write_sums(dist)
    assert tar(sources, date) == unzipped(sdist)
    with pytest.raises(Refused, match=r"it differs in hfx"):
        verify(dist, lambda line: None)


def test_a_checkout_with_changes_is_refused(tmp_path: Path) -> None:
    checkout = clone(tmp_path / "hfx")
    (checkout / "README.md").write_text("changed")
    with pytest.raises(UsageError, match=r"such as README\.md"):
        build(checkout, tmp_path / "dist")


@pytest.mark.full
def test_a_library_that_does_not_compile_stops_the_release(tmp_path: Path) -> None:
    checkout = clone(tmp_path / "hfx")
    (checkout / "hfx/native/choose.cpp").write_text("int broken = ;\n")
    git(checkout, "commit", "--all", "--message=native: break it")
    with pytest.raises(Refused, match="not compiled") as caught:
        build(checkout, tmp_path / "dist", lambda line: None)
    assert "expected expression" in caught.value.fix
    assert not (tmp_path / "dist").exists()


@pytest.mark.full
def test_a_folder_with_other_files_is_not_replaced(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"notes\.txt"):
        build(checkout, tmp_path)


def test_a_folder_that_is_no_clone_is_refused(tmp_path: Path) -> None:
    copy_small_checkout(tmp_path / "hfx")
    with pytest.raises(UsageError, match="git status failed"):
        build(tmp_path / "hfx", tmp_path / "dist")
