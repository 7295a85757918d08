"""The native library is compiled again when its sources change; a missing library is an error with a fix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hfx import native
from hfx.native.build import LIBRARY, ZIGLANG
from tests.rigs.files.checkouts import copy_small_checkout

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that a library is compiled from, without the library, reduced to a source that compiles in no time."""
    return copy_small_checkout(tmp_path)


def python(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return subprocess.run([sys.executable, *words], cwd=checkout, env=environment, capture_output=True, text=True)


def test_builds_in_isolation_and_the_environment_have_the_same_compiler() -> None:
    build_system = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    assert not any("ziglang" in line for line in build_system["requires"])  # setup.py asks for ZIGLANG
    assert ZIGLANG in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def test_the_library_needs_libc_alone_as_old_as_the_tag_of_the_wheel() -> None:
    content = native.library().read_bytes()
    opened_for_a_gpu = b"libcuda.so.1"
    needed = set(re.findall(rb"[\w+-]+\.so[.\d]*", content)) - {opened_for_a_gpu}
    assert needed <= {b"libc.so.6", b"libdl.so.2", b"libpthread.so.0"}
    versions = {tuple(map(int, version.split(b"."))) for version in re.findall(rb"GLIBC_([\d.]+)", content)}
    assert versions and max(versions) <= (2, 17)


def test_the_library_names_the_kernels_that_this_processor_runs() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    names = {"avx512_vnni": "avx512-vnni", "avx_vnni": "avx-vnni", "avx2": "avx2"}
    least = next((name for flag, name in names.items() if flag in flags), "")
    by_trial = {"amx_int8": "amx-int8", "avx512_vnni": "avx512-vnni-panels"}
    assert native.kernels() in {least, *(name for flag, name in by_trial.items() if flag in flags)}


def test_a_missing_library_is_an_error_that_says_how_to_build_it(checkout: Path) -> None:
    done = python(checkout, "-c", "import hfx.native; hfx.native.library()")
    assert (
        f"NativeMissing: hfx was installed without its native kernels: {checkout}/hfx/native/{LIBRARY}" in done.stderr
    )
    assert f"`pip install {ZIGLANG}` and `python -m hfx.native.build`" in done.stderr


@pytest.mark.slow
def test_it_is_compiled_only_when_it_is_older_than_its_sources(checkout: Path) -> None:
    library = checkout / "hfx/native" / LIBRARY
    made = []
    python_file = checkout / "hfx/python_backends/errors.py"
    for touched in (checkout / "setup.py", checkout / "setup.py", checkout / "hfx/native/linear.h", python_file):
        touched.touch()
        done = python(checkout, "-m", "hfx.native.build")
        assert done.returncode == 0, done.stderr
        made.append(library.stat().st_mtime_ns)
    assert made[0] == made[1] < made[2] < made[3]
    assert {path.suffix for path in library.parent.iterdir()} <= {".py", ".h", ".cpp", ".so", ""}  # "": __pycache__


def test_a_failure_of_the_compiler_is_reported_and_leaves_no_library(checkout: Path) -> None:
    library = checkout / "build/lib/hfx/native" / LIBRARY
    library.parent.mkdir(parents=True)
    library.touch()
    (checkout / "hfx/native/choose.cpp").write_text("int broken = ;\n")
    done = python(checkout, "setup.py", "build_native")
    assert done.returncode == 0 and "choose.cpp:1:14: error: expected expression" in done.stdout + done.stderr
    assert not library.exists()
