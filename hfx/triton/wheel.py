"""The tritonserver that the nvidia-pytriton wheel carries: its command's files, environment and backend folder.

Nothing of pytriton is imported: the server process and `hfx --help` must not pay for it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import ServerError

VERSION = "2.51.0"  # = NGC tag 24.10, of nvidia-pytriton 0.7.0


@dataclass(frozen=True)
class Wheel:
    """Files of an unpacked nvidia-pytriton.

    `binary` is the tritonserver executable, `libraries` the folder of the shared libraries that it needs, `caches` that
    of the response caches, `python_backend` that of libtriton_python.so and of the module that models import; `stub` is
    the executable that runs Python models, built for this interpreter's version.
    """

    binary: Path
    libraries: Path
    caches: Path
    python_backend: Path
    stub: Path

    def environment(self) -> dict[str, str]:
        """The environment for the server and its stubs.

        The stub needs the libpython of this very interpreter (LIBDIR comes first, else the loader may take the
        distribution's) and finds its packages as `python3` on PATH does; it ignores PYTHON* variables.
        """
        environment = dict(os.environ)
        libraries = [str(sysconfig.get_config_var("LIBDIR")), str(self.libraries)]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *_split(environment.get("LD_LIBRARY_PATH"))])
        environment["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), *(_split(environment.get("PATH")) or ["/usr/bin", "/bin"])]
        )
        return environment


def _split(value: str | None) -> list[str]:
    return [part for part in (value or "").split(os.pathsep) if part]


def find_wheel() -> Wheel:
    """The wheel of this environment; raises ServerError when it is missing or has no build for this Python."""
    spec = importlib.util.find_spec("pytriton")
    package = Path(spec.origin).parent if spec and spec.origin else None
    if package is None or not (package / "tritonserver" / "bin" / "tritonserver").is_file():
        raise ServerError(
            "The embedded Triton server needs the package nvidia-pytriton, which is not installed.",
            "Run: pip install 'hfx[embedded]'    (or serve in a container: hfx serve --with docker)",
        )
    triton, python = package / "tritonserver", f"{sys.version_info.major}.{sys.version_info.minor}"
    wheel = Wheel(
        binary=triton / "bin" / "tritonserver",
        libraries=package.parent / "nvidia_pytriton.libs",
        caches=triton / "caches",
        python_backend=triton / "backends" / "python",
        stub=triton / "python_backend_stubs" / python / "triton_python_backend_stub",
    )
    if not wheel.stub.is_file():
        raise ServerError(
            f"The installed nvidia-pytriton has no Python backend for Python {sysconfig.get_python_version()}.",
            "Use Python 3.11 or 3.12, or serve in a container: hfx serve --with docker",
        )
    return wheel


def make_backend_directory(folder: Path, wheel: Wheel, python_based: Mapping[str, Mapping[str, Path]]) -> None:
    """Fill FOLDER with the python backend and with PYTHON_BASED ones: backend name -> (file in its folder -> source).

    Everything is a symbolic link, except for the library: Triton refuses a linked one for python-based backends
    ("backend library name 'libtriton_python.so' escapes backend directory").
    """
    python = folder / "python"
    python.mkdir(parents=True)
    shutil.copy2(wheel.python_backend / "libtriton_python.so", python)
    for source in (wheel.python_backend / "triton_python_backend_utils.py", wheel.stub):
        (python / source.name).symlink_to(source)
    for name, files in python_based.items():
        for target, source in files.items():
            link = folder / name / target
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source.resolve())
