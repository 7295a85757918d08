"""Compiles the native libraries, for `python -m hfx.native.build` and for setup.py when hfx is installed.

A library contains the operators for ONNX Runtime, the tokenizer, and Triton's backend for encoders. There is one for
each kind of processor. Each is compiled on both, because a published model has both: it is served on either.

The compiler is the clang of the package ziglang, which pip installs. This file uses only the standard library, because
setup.py runs it before hfx is installed.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ZIGLANG = "ziglang==0.17.1"
ZIG = (sys.executable, "-m", "ziglang", "c++")
FLAGS = (
    "-std=c++17 -O3 -ffp-contract=off -fno-math-errno -fsigned-char -fno-exceptions -fno-rtti -fvisibility=hidden "
    "-fPIC -Wall -Wextra -Wno-psabi"
)


@dataclass(frozen=True)
class Target:
    """A kind of processor: the name of its library, the folder of its sources, and zig's name for it.

    `processors` has more flags for some sources. They run only where kernels() in choose.cpp has found a processor for
    them. The other sources run on any processor of the kind.
    """

    library: str
    folder: str
    triple: str
    processors: Mapping[str, str]


TARGETS = {  # by platform.machine()
    "x86_64": Target(
        "libhfx_operators.so",
        "x86",
        "x86_64-linux-gnu.2.17",
        {
            "floats_avx": "-march=x86_64_v3",
            "floats_avx512": "-march=x86_64_v4",
            "pairs_avx512": "-march=x86_64_v4 -mavx512bf16",
            "linear_avx2": "-march=x86_64_v3",
            "linear_avx": "-march=x86_64_v3 -mavxvnni",
            "linear_avx512": "-march=x86_64_v4 -mavx512vnni -mprfchw",
            "linear_amx": "-march=x86_64_v4 -mavx512vnni -mprfchw -mamx-tile -mamx-int8",
        },
    ),
    "aarch64": Target(
        "libhfx_operators_aarch64.so",
        "arm",
        "aarch64-linux-gnu.2.17",
        {"linear_dot": "-mcpu=generic+dotprod", "linear_i8mm": "-mcpu=generic+dotprod+i8mm"},
    ),
}
MACHINE = platform.machine()
LIBRARY = TARGETS.get(MACHINE, TARGETS["x86_64"]).library  # of this machine
# Link libc only. Otherwise zig first builds the runtimes of the compiler and of UBSan, which takes ten seconds and of
# which the library uses nothing.
LINK, LINKED = "-shared -nostdlib", "-lc -ldl -lpthread"


# What the backend shares with the Python steps, where each constant is explained. The build makes a C++ header of them.
SHARED = {
    "admission.py": ("FEW_WAITING",),
    "checks.py": ("NAME_LENGTH",),
    "encoding.py": ("MAX_LABELS",),
    "errors.py": (
        "ROWS_DIFFER", "IS_MISSING", "IS_EMPTY", "HAS_NO_STRINGS", "HAS_NO_TOKENS", "PAIR_HAS_NO_TOKENS",
        "HAS_TOO_MANY_BYTES", "IS_HUGE", "HAS_NO_PROMPTS", "BOTH_ARE_SENT", "HAS_TOO_MANY_LABELS", "HAS_AN_EMPTY_LABEL",
        "LEAVES_NO_ROOM", "DIFFERS_BETWEEN_ROWS", "IS_BELOW_ONE", "HAS_ANOTHER_TYPE", "HAS_OTHER_DIMENSIONS",
        "IS_OVERLOADED", "TRY_AGAIN", "IS_NONE_OF", "WINDOWS_SHARE", "HAS_NO_WINDOWS", "IS_TOO_LONG", "TO_DIVIDE",
    ),
    "inputs.py": ("BYTES_PER_TOKEN", "LONGEST_TEXT", "MARGIN"),
    "large_requests.py": ("LARGE", "TURNS"),
    "serving/metrics.py": ("STATE_CHECKS",),
    "windows.py": ("CONTEXT_TOKENS", "REQUEST_TOKENS", "CONTEXT_BYTES"),
}  # fmt: skip
PYTHON = HERE.parent / "python_backends"
HEADER = "shared.h"


class BuildFailed(Exception):
    """The library can't be built here; the text gives the reason, or the compiler's output."""


def build(folder: Path = HERE) -> bool:
    """Compile the libraries into `folder` unless they are newer than the sources; return whether they were compiled.

    Raises BuildFailed if the system is not supported, or if a command of the build fails.
    """
    if reason := unsupported():
        raise BuildFailed(reason)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):  # another build has files beside the sources until it ends
        if is_current(folder):
            return False
        # Build beside the libraries, then replace them atomically: running processes may have old ones mapped.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as made:
            Path(made, HEADER).write_text(header(), encoding="utf-8")
            targets = [commands(Path(made), target) for target in TARGETS.values()]
            compiles = [command for of_target, _ in targets for command in of_target]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(partial(_run, cache=made), compiles))
            for _, link in targets:
                _run([*link, "-s"], made)
            for target in TARGETS.values():
                Path(made, target.library).replace(folder / target.library)
        return True


def is_current(folder: Path = HERE) -> bool:
    """Return whether the libraries in `folder` are newer than all sources."""
    sources = [*HERE.rglob("*.cpp"), *HERE.rglob("*.h"), Path(__file__), *(PYTHON / name for name in SHARED)]
    libraries = [folder / target.library for target in TARGETS.values()]
    if not all(library.exists() for library in libraries):
        return False
    oldest = min(library.stat().st_mtime for library in libraries)
    return oldest > max(path.stat().st_mtime for path in sources)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let only one build at a time write to `folder`: `make` may start a build while pip runs another."""
    import fcntl  # other systems than Linux may lack it

    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def commands(folder: Path, target: Target) -> tuple[list[list[str]], list[str]]:
    """Return the commands that compile each source of `target` into an object in `folder`, and the link command.

    The folder has the file HEADER.
    """
    compiles, objects = [], []
    compiler = [*ZIG, "-target", target.triple]
    flags = [*FLAGS.split(), *(f"-I{each}" for each in (folder, HERE, HERE / target.folder))]
    others = {each.folder for each in TARGETS.values()} - {target.folder}
    for source in sorted(HERE.rglob("*.cpp")):
        if source.parent.name in others:
            continue
        objects.append(str(folder / f"{target.folder}-{source.stem}.o"))
        processor = target.processors.get(source.stem, "").split()
        compiles.append([*compiler, *flags, *processor, "-c", str(source), "-o", objects[-1]])
    return compiles, [*compiler, *LINK.split(), *objects, *LINKED.split(), "-o", str(folder / target.library)]


def header() -> str:
    """Return the text of a C++ header with the constants in SHARED. Raises BuildFailed for one that is not there."""
    lines = ["#pragma once", "#include <stddef.h>", "namespace hfx {"]
    for name, constants in SHARED.items():
        tree = ast.parse((PYTHON / name).read_text(encoding="utf-8"))
        assigned = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        if missing := [constant for constant in constants if constant not in assigned]:
            raise BuildFailed(f"{PYTHON / name} has no constant {', '.join(missing)}.")
        lines += [f"constexpr {_declared(constant, ast.literal_eval(assigned[constant]))};" for constant in constants]
    return "\n".join([*lines, "}  // namespace hfx", ""])


def _declared(name: str, value: object) -> str:
    """Return the C++ declaration of a text, of a number, or of an array of numbers."""
    if isinstance(value, str):
        return f"char {name}[] = {json.dumps(value)}"
    return f"size_t {name}[] = {{{str(value)[1:-1]}}}" if isinstance(value, tuple) else f"size_t {name} = {value}"


def unsupported() -> str:
    """Return why this system can't use a library, and what works on it, as a sentence; "" if it can use one."""
    system = f"{platform.system()} {MACHINE} {platform.libc_ver()[0]}".strip()
    if system in [f"Linux {machine} glibc" for machine in TARGETS]:
        return ""
    supported = f"hfx's native code is for Linux with glibc on {' and '.join(TARGETS)}, and this is {system}"
    return f"{supported}: here, the client works, and a Linux container runs the rest."


def _run(command: Sequence[str], cache: str) -> None:
    # zig's own cache would be in the home folder, which may be read-only.
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}\n{done.stdout}{done.stderr}".rstrip())


if __name__ == "__main__":
    try:
        print("The libraries in", HERE, "are built." if build() else "are newer than their sources.")
    except BuildFailed as error:
        sys.exit(f"{error}")
