"""The native library is compiled again when its sources change; a missing library is an error with a fix."""

from __future__ import annotations

import os
import platform
import re
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hfx import native
from hfx.errors import NativeMissing
from hfx.native import build
from hfx.native.build import LIBRARY, TARGETS, ZIGLANG
from tests.rigs.files.checkouts import copy_small_checkout

ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "hfx" / "native"


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


def test_each_kind_of_processor_has_a_library_and_one_of_them_is_for_this_machine() -> None:
    assert native.libraries() == {machine: NATIVE / target.library for machine, target in TARGETS.items()}
    assert native.libraries()[platform.machine()] == native.library()


def test_models_without_a_library_for_a_processor_are_found(tmp_path: Path) -> None:
    own, other = (target.library for target in TARGETS.values())
    files = [f"a/1/{own}", f"a/1/{other}", f"b/1/{own}", "c/1/model.onnx"]
    assert [native.missing(files, machine) for machine in (*TARGETS, "riscv64")] == [[], [f"b/1/{other}"], []]
    (tmp_path / other).touch()
    assert native.libraries(tmp_path) == {"aarch64": tmp_path / other}


ELF_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine


@pytest.mark.parametrize("machine", TARGETS)
def test_a_library_needs_libc_alone_as_old_as_the_tag_of_the_wheel(machine: str) -> None:
    content = native.libraries()[machine].read_bytes()
    assert content[:4] == b"\x7fELF" and struct.unpack_from("<H", content, 18) == (ELF_MACHINES[machine],)
    opened_for_a_gpu, loader = b"libcuda.so.1", b"ld-linux-x86-64.so.2"  # libc's, which finds the variables of a thread
    needed = set(re.findall(rb"[\w+-]+\.so[.\d]*", content)) - {opened_for_a_gpu, loader}
    assert needed <= {b"libc.so.6", b"libdl.so.2", b"libpthread.so.0"}
    versions = {tuple(map(int, version.split(b"."))) for version in re.findall(rb"GLIBC_([\d.]+)", content)}
    assert versions and max(versions) <= (2, 17)


def test_the_library_names_the_kernels_that_this_processor_runs() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    names = {"avx512_vnni": "avx512-vnni", "avx_vnni": "avx-vnni", "avx2": "avx2"}
    least = next((name for flag, name in names.items() if flag in flags), "")
    by_trial = {"amx_int8": "amx-int8", "avx512_vnni": "avx512-vnni-panels"}
    assert native.kernels() in {least, *(name for flag, name in by_trial.items() if flag in flags)}


@pytest.mark.parametrize(
    ("system", "machine", "libc"),
    [
        ("Darwin", "arm64", ""),
        ("Windows", "AMD64", ""),
        ("Linux", "x86_64", ""),  # with musl
        ("Linux", "riscv64", "glibc"),
    ],
)
def test_an_unsupported_system_is_an_error_that_says_what_works(
    system: str, machine: str, libc: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(build, "MACHINE", machine)
    said = build.unsupported()
    assert f"{system} {machine}" in said and "client" in said and "container" in said and not native.is_built()
    with pytest.raises(NativeMissing, match=re.escape(said)):  # although the library for x86-64 is there
        native.library()
    with pytest.raises(build.BuildFailed, match=re.escape(said)):
        build.build(tmp_path)


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
