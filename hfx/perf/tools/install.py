"""Where the load generators of others are, and fetching perf_analyzer, which can't be installed beside hfx's packages.

The binary is the one of the tritonclient 2.51.0 wheel (that release wants protobuf below 5); two libraries that it
misses come from the nvidia-pytriton wheel. A perf_analyzer on PATH is taken too.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hfx.errors import ServerError, UsageError
from hfx.extras import install_command
from hfx.perf import cache

NAME = "perf_analyzer"
PINS = ("tritonclient==2.51.0",)
LIBRARIES_FOLDER = "perf_analyzer-libraries"
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
FETCH = "Run: hfx perf tools perf_analyzer    (fetches 19 MB with pip, apart from your packages)"
VERSION_SECONDS = 20.0


@dataclass(frozen=True)
class Program:
    """A perf_analyzer that can be run. `libraries`: a folder that the loader must search, None for one of PATH."""

    path: Path
    version: str
    libraries: Path | None = None

    @property
    def command(self) -> str:
        """The beginning of a shell line that runs it."""
        libraries = f"LD_LIBRARY_PATH={shlex.quote(str(self.libraries))} " if self.libraries else ""
        return libraries + shlex.quote(str(self.path))

    @property
    def environment(self) -> Mapping[str, str]:
        """What it is run with."""
        searched = [str(self.libraries or ""), os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, searched))}


@dataclass(frozen=True)
class Tool:
    """A load generator: its version and place, empty where it is not there; then `fix` says how to get it."""

    name: str
    about: str
    version: str = ""
    where: str = ""
    fix: str = ""


def tools() -> tuple[Tool, ...]:
    """Every tool that `hfx perf run --tool` takes."""
    builtin = Tool("builtin", "asyncio over gRPC, closed and open loop, streaming", _version("hfx"), "part of hfx")
    analyzer = Tool(NAME, "NVIDIA's, in C++: closed and open loop, streaming")
    locust = Tool("locust", "in Python, with a web page of its own; gRPC, HTTP, streaming", _version("locust"))
    try:
        program = find()
        analyzer = replace(analyzer, version=program.version, where=str(program.path))
    except UsageError as error:
        analyzer = replace(analyzer, fix=f"{error.message} {error.fix}")
    if locust.version:
        locust = replace(locust, where=str(Path(__file__).parents[1] / "locustfile.py"))
    else:
        locust = replace(locust, fix=f"Run: {install_command('perf')}")
    return builtin, analyzer, locust


def find() -> Program:
    """The perf_analyzer that was fetched, or the one on PATH. Raises UsageError that says how to get it."""
    if folder := cache.installed(NAME, PINS):
        return _checked(folder / "bin" / NAME, _libraries())
    if on_path := shutil.which(NAME):
        return _checked(Path(on_path), None)
    raise UsageError("perf_analyzer is not here: neither fetched nor on PATH.", FETCH)


def fetch() -> Program:
    """Fetch perf_analyzer if it is not there yet. Raises FetchFailed, and UsageError where it does not run here.

    The folder appears whole or not at all, even with several processes at a time.
    """
    folder = cache.packages(NAME, PINS, lambda folder: (folder / "bin" / NAME).chmod(0o755))
    return _checked(folder / "bin" / NAME, _libraries())


def _libraries() -> Path | None:
    """Copies of the libraries that the binary misses, from this environment's wheel of Triton; None without it."""

    def copy(folder: Path) -> None:
        from hfx.triton.wheel import libraries

        for name, pattern in LIBRARIES.items():
            for library in libraries().glob(pattern):
                shutil.copyfile(library, folder / name)

    try:
        return cache.made(LIBRARIES_FOLDER, copy)
    except ServerError:
        return None  # what the system has must do


def _checked(path: Path, libraries: Path | None) -> Program:
    """The program with its version. Raises UsageError where it does not run."""
    program = Program(path, "", libraries)
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, env=program.environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} does not run: {error}.", FETCH) from error
    # `Perf Analyzer Version 2.51.0 (commit unknown)`; it ends with a code as of an error.
    version = re.search(r"Version (\S+)", done.stdout + done.stderr)
    if version is None:
        reason = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        fix = f"Its libraries come with: {install_command('embedded')}" if "shared librar" in reason else FETCH
        raise UsageError(f"{path} does not run: {reason}.", fix)
    return replace(program, version=version[1])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
