"""Builds the wheel and the source distribution of the last commit, each in two folders, and compares them."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from hfx.errors import UsageError
from release import Refused
from release.archives import read_sdist, unpack, write_sdist
from release.backend import build_sdist, build_wheel, check_tools
from release.verify import SUMS, digest, verify


def build(root: Path, dist: Path, say: Callable[[str], None] = print) -> None:
    """Write the release of the last commit of the checkout `root` into the folder `dist`, in place of an earlier one.

    The source distribution is built from two copies of the commit, the wheel from the source distribution, and once
    more by `verify`. Raises Refused if two builds differ, and UsageError for a checkout with other changes, as well as
    for a folder with other files.
    """
    check_tools()
    _check_replaced(dist)
    if changes := _git(root, "status", "--porcelain", "--untracked-files=no"):
        first = changes.splitlines()[0][3:]
        raise UsageError(f"{root} has changes that are not in a commit, such as {first}.", "Commit or stash them.")
    date = int(_git(root, "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="hfx-release-") as temporary:
        staging = Path(temporary, "dist")
        staging.mkdir()
        _build(root, date, Path(temporary), staging)
        verify(staging, say)
        _publish(staging, dist)
    say(f"{dist}: the release of {_git(root, 'rev-parse', 'HEAD')}.")


def _build(root: Path, date: int, temporary: Path, staging: Path) -> None:
    """Fill the folder `staging`; build in folders of `temporary`."""
    first, second = (_sdist(root, date, temporary / folder) for folder in ("a", "another/and/deeper"))
    if first.read_bytes() != second.read_bytes():
        raise Refused(f"Two copies of the commit build other bytes of {first.name}.", "Compare them by hand.")
    sdist = first.replace(staging / first.name)
    unpack(read_sdist(sdist)[0], temporary / "sources")
    wheel = build_wheel(temporary / "sources" / sdist.name.removesuffix(".tar.gz"), temporary / "wheel", date)
    wheel = wheel.replace(staging / wheel.name)
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted((sdist, wheel)))
    (staging / SUMS).write_text(sums, encoding="ascii")


def _sdist(root: Path, date: int, folder: Path) -> Path:
    """Return the source distribution of the last commit in the form of a release, built in the new `folder`."""
    folder.mkdir(parents=True)
    _git(root, "archive", "--format=tar", f"--output={folder / 'commit.tar'}", "HEAD")
    with tarfile.open(folder / "commit.tar") as archive:
        archive.extractall(folder / "source", filter="data")
    built = build_sdist(folder / "source", folder / "built", date)
    write_sdist(folder / built.name, read_sdist(built)[0], date)
    return folder / built.name


def _check_replaced(dist: Path) -> None:
    """Raise UsageError if `dist` has files that are not of a release, as it is replaced as a whole."""
    if dist.exists() and not dist.is_dir():
        raise UsageError(f"{dist} is not a folder.", "Name another one.")
    others = [path.name for path in dist.glob("*") if path.name != SUMS and not path.name.endswith((".whl", ".tar.gz"))]
    if others:
        raise UsageError(f"{dist} has {sorted(others)[0]}, which is not of a release.", "Name another folder.")


def _publish(staging: Path, dist: Path) -> None:
    """Put the files of `staging` into `dist`, and remove the others there."""
    dist.mkdir(parents=True, exist_ok=True)
    for path in dist.iterdir():
        path.unlink()
    for path in staging.iterdir():
        (dist / path.name).write_bytes(path.read_bytes())


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(
            f"git {words[0]} failed in {root}: {done.stderr.strip()}.", "Run it in a clone of the repository."
        )
    return done.stdout.rstrip()
