"""A tritonserver as in an image: a binary on PATH and its backends in a folder beside it, from the wheel's files."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from tests.rigs.servers import installed_triton

MOVED_SOCKET = """for argument; do
    shift
    case $argument in --http-address=unix:*) argument=--http-address=unix:/nowhere/s ;; esac
    set -- "$@" "$argument"
done
"""


def install(folder: Path, *, refuses_sockets: bool = False, has_onnxruntime: bool = False) -> dict[str, str]:
    """Make `folder`/bin/tritonserver and `folder`/backends; return the variables of a machine that has them.

    With `refuses_sockets`, that Triton can't listen at a Unix socket. With `has_onnxruntime`, it has a backend of that
    name, which loads no model.
    """
    wheel = installed_triton.find()
    backends = wheel.backend_directory(folder / "backends")
    for name in ("onnxruntime", "hfx_onnxruntime"):
        if (backends / name).is_symlink():
            (backends / name).unlink()
        elif (backends / name).is_dir():
            shutil.rmtree(backends / name)
    if has_onnxruntime:
        (backends / "onnxruntime").mkdir()
    (folder / "bin").mkdir()
    program = folder / "bin" / "tritonserver"
    libraries, binary = shlex.quote(wheel.environment["LD_LIBRARY_PATH"]), shlex.quote(str(wheel.binary))
    program.write_text(
        f'#!/bin/sh\n{MOVED_SOCKET if refuses_sockets else ""}LD_LIBRARY_PATH={libraries} exec {binary} "$@"\n'
    )
    program.chmod(0o755)
    path = [str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {"PATH": os.pathsep.join(path)}
