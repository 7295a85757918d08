"""Runs setuptools on a folder, such that the bytes depend on the files there alone.

The child process has no variables of the caller's environment, one umask, one time zone, and the date of the commit in
SOURCE_DATE_EPOCH, which setuptools gives to the files in a wheel.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from release import Refused

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
TAG = "py3-none-manylinux_2_17_aarch64.manylinux_2_17_x86_64"
CALL = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
SECONDS = 1200.0
SHOWN = 15  # lines of the output of a build that fails
WARNING = "hfx is installed without its native kernels."  # setup.py prints it before the reason


def check_tools() -> None:
    """Raise Refused unless this environment has the versions in requirements.txt, as others write other bytes."""
    for name, pinned in pins().items():
        try:
            here = version(name)
        except PackageNotFoundError:
            here = "none"
        if here != pinned:
            raise Refused(
                f"This environment has {name} {here}; releases are built with {pinned}.",
                f"Run: pip install --require-hashes --only-binary=:all: --requirement {REQUIREMENTS.name}, in release/",
            )


def pins() -> dict[str, str]:
    """Return the version of each package in requirements.txt."""
    return dict(re.findall(r"^([\w-]+)==(\S+)", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE))


def build_sdist(source: Path, folder: Path, date: int) -> Path:
    """Build the source distribution of `source` into the new `folder`, as setuptools writes it. Raises Refused."""
    _build("build_sdist", source, folder, date)
    return next(folder.glob("*.tar.gz"))


def build_wheel(source: Path, folder: Path, date: int) -> Path:
    """Build the wheel of `source` into the new `folder`. Raises Refused, also if the native library is missing."""
    output = _build("build_wheel", source, folder, date)
    wheel = next(folder.glob("*.whl"))
    if not wheel.name.endswith(f"-{TAG}.whl"):
        reason = output.partition(WARNING)[2].strip() or output
        raise Refused(f"The native library was not compiled: the wheel is {wheel.name}.", _shown(reason.splitlines()))
    return wheel


def _build(hook: str, source: Path, folder: Path, date: int) -> str:
    """Call a hook of setuptools' build backend; return its output."""
    folder.mkdir(parents=True)
    environment = {"PATH": os.defpath, "HOME": str(folder.parent), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", CALL, hook, str(folder.absolute())],
            cwd=source,
            env={**environment, "SOURCE_DATE_EPOCH": str(date)},
            umask=0o022,
            timeout=SECONDS,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"setuptools did not end in {hook} within {SECONDS:g} s.", "Try it again alone.") from error
    if done.returncode:
        raise Refused(f"setuptools failed in {hook}.", _shown(done.stdout.splitlines()[-SHOWN:]))
    return done.stdout


def _shown(lines: list[str]) -> str:
    return "\n".join(lines[:SHOWN])
