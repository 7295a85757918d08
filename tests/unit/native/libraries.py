"""The native libraries under test: the one that hfx ships, and a build of all kernels for AVX512-VNNI.

With the second library, one processor tests what it lacks: AVX-VNNI's kernels in AVX-512's form of the instruction, and
AMX's with emulated tiles. HFX_NATIVE_TEST_FLAGS adds to its compiler flags; with them, only this library is tested
(test_sanitizers.py).
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from hfx.errors import HfxError
from hfx.native import build
from hfx.native import library as shipped_library
from tests.rigs.machine.processors import ALL_KERNELS, KERNELS
from tests.zoo.cache import built

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "hfx" / "native"
CHOOSING = {NATIVE / "choose.cpp", NATIVE / "x86" / "cpu.cpp"}
SOURCES = (*sorted({*NATIVE.glob("*.cpp"), *NATIVE.glob("x86/*.cpp")} - CHOOSING), HERE / "every_kernel.cpp")
FLAGS = (
    *build.FLAGS.split(),
    *("-O2", "-Wconversion", "-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),  # -O3 takes twice as long
    *(f"-I{NATIVE}", f"-I{NATIVE / 'x86'}", f"-I{HERE}", '-DHFX_EMULATED_TILES="emulated_tiles.h"'),
    *os.environ.get("HFX_NATIVE_TEST_FLAGS", "").split(),
)
SANITIZED = "HFX_NATIVE_TEST_FLAGS" in os.environ
SHIPPED = [] if SANITIZED else [f"shipped {name}" for name in KERNELS]
CASES = [*SHIPPED, *(f"compiled {name}" for name in ALL_KERNELS)]
# Builds by another compiler of kernels that hfx ships and that run here.
OTHERS = {f"compiled {name}" for name in KERNELS} if SHIPPED else set()
# With each kind of float kernels: FLOATS_AVX512, FLOATS_AVX and FLOATS_NEON.
FLOAT_CASES = {f"{'shipped' if SHIPPED else 'compiled'} {name}" for name in ("avx512-vnni", "avx2", "neon-dot")}


def open_case(case: str, folder: Path) -> Path:
    """Return the library of one of CASES. Skips the test if it is missing or can't be compiled."""
    origin, name = case.split()
    path = folder / f"{origin}-{name}.so"
    # It chooses its kernels once, and a file is loaded once: each case has a copy.
    shutil.copy(compiled() if origin == "compiled" else shipped(), path)
    os.environ["HFX_NATIVE_KERNELS"] = name
    try:
        ctypes.CDLL(str(path))  # it stays, and so does its choice, when the last session has gone
        onnxruntime.SessionOptions().register_custom_ops_library(str(path))
    finally:
        del os.environ["HFX_NATIVE_KERNELS"]
    return path


def shipped() -> Path:
    """The library that hfx has built."""
    try:
        return shipped_library()
    except HfxError as error:
        pytest.skip(str(error))


def compiled() -> Path:
    """Return the library with all kernels for AVX512-VNNI, compiled once for each state of the sources."""
    if "avx512-vnni" not in KERNELS:
        pytest.skip("this processor has no AVX512-VNNI")
    return shared_library(
        "native-kernels", FLAGS, SOURCES, [*NATIVE.glob("*.h"), *NATIVE.glob("x86/*.h"), *HERE.glob("*.h")]
    )


def shared_library(name: str, flags: Sequence[str], sources: Sequence[Path], headers: Iterable[Path]) -> Path:
    """Return the library of `sources`, compiled once for each state of them and of `headers`."""
    command, file = [*compiler(), *flags], f"{name}.so"
    key = build_key([*command, file], [*sources, *headers])

    def compile_all(folder: Path) -> dict[str, Any]:
        (folder / build.HEADER).write_text(build.header())
        command.append(f"-I{folder}")
        objects = [str(folder / f"{source.parent.name}-{source.stem}.o") for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda source, made: run("-c", str(source), "-o", made), sources, objects))
        run("-shared", *objects, "-o", str(folder / file))
        return {"command": command}

    def run(*words: str) -> None:
        subprocess.run([*command, *words], check=True)

    return built(name, key, compile_all) / file


def build_key(command: Sequence[str], files: Iterable[Path]) -> str:
    """Return the key of what `command` compiles: of its words, the header that the build makes, and `files`."""
    digest = hashlib.sha256(repr([*command, build.header()]).encode())
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> list[str]:
    """Return the command of a C++ compiler. Skips the test if there is none."""
    if shutil.which("g++"):
        return ["g++"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++", "-nostdlib++"]
    pytest.skip("there is no compiler: g++, or ziglang of PyPI")
