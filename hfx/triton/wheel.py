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
    """An unpacked nvidia-pytriton; `site_packages` is the folder that holds it."""

    site_packages: Path

    @property
    def _triton(self) -> Path:
        return self.site_packages / "pytriton" / "tritonserver"

    @property
    def binary(self) -> Path:
        """The tritonserver executable."""
        return self._triton / "bin" / "tritonserver"

    @property
    def caches(self) -> Path:
        """The folder of response cache implementations."""
        return self._triton / "caches"

    @property
    def python_backend(self) -> Path:
        """The folder with libtriton_python.so and the module that models import."""
        return self._triton / "backends" / "python"

    @property
    def stub(self) -> Path:
        """The executable that runs Python models, built for this interpreter's version."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return self._triton / "python_backend_stubs" / version / "triton_python_backend_stub"

    def environment(self) -> dict[str, str]:
        """The environment for the server and its stubs.

        The stub needs the libpython of this very interpreter (LIBDIR comes first, else the loader may take the
        distribution's) and finds its packages as `python3` on PATH does; it ignores PYTHON* variables.
        """
        environment = dict(os.environ)
        libraries = [str(sysconfig.get_config_var("LIBDIR")), str(self.site_packages / "nvidia_pytriton.libs")]
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
    wheel = Wheel(Path(spec.origin).parents[1]) if spec and spec.origin else None
    if wheel is None or not wheel.binary.is_file():
        raise ServerError(
            "The embedded Triton server needs the package nvidia-pytriton, which is not installed.",
            "Run: pip install 'hfx[embedded]'    (or serve in a container: hfx serve --with docker)",
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
