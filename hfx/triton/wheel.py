"""The tritonserver that the nvidia-pytriton wheel carries.

Nothing of pytriton is imported: the server process and `hfx --help` must not pay for it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from hfx.errors import ServerError
from hfx.extras import install_command
from hfx.triton.installation import Installation
from hfx.triton.liveness import SERVER, STUB

VERSION = "2.51.0"  # = NGC tag 24.10, of nvidia-pytriton 0.7.0
RISK = f"The embedded tritonserver {VERSION} lacks the security fixes since 2025; use --with docker instead."


def find_wheel() -> Installation:
    """The tritonserver of this environment; raises ServerError when it is missing or has no build for this Python."""
    triton = _package() / SERVER
    stub = triton / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}" / STUB
    if not stub.is_file():
        raise ServerError(
            f"The installed nvidia-pytriton has no Python backend for Python {sysconfig.get_python_version()}.",
            "Use Python 3.11 or 3.12, or serve in a container: hfx serve --with docker",
        )
    return Installation(
        binary=triton / "bin" / SERVER,
        environment=_environment(),
        backends=triton / "backends",
        stub=stub,
        arguments=(f"--cache-directory={triton / 'caches'}",),
        risk=RISK,
    )


def libraries() -> Path:
    """The folder of the shared libraries that the wheel brings; raises ServerError without the wheel."""
    return _package().parent / "nvidia_pytriton.libs"


def _package() -> Path:
    spec = importlib.util.find_spec("pytriton")
    package = Path(spec.origin).parent if spec and spec.origin else None
    if package is None or not (package / SERVER / "bin" / SERVER).is_file():
        raise ServerError(
            "The embedded Triton server needs the package nvidia-pytriton, which is not installed.",
            f"Run: {install_command('embedded')}    (or serve in a container: hfx serve --with docker)",
        )
    return package


def _environment() -> dict[str, str]:
    """The environment for the server and its stubs.

    The stub needs the libpython of this very interpreter (LIBDIR comes first, else the loader may take the
    distribution's) and finds its packages as `python3` on PATH does; it ignores PYTHON* variables.
    """
    environment = dict(os.environ)
    folders = [str(sysconfig.get_config_var("LIBDIR")), str(libraries())]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, *_split(environment.get("LD_LIBRARY_PATH"))])
    environment["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), *(_split(environment.get("PATH")) or ["/usr/bin", "/bin"])]
    )
    return environment


def _split(value: str | None) -> list[str]:
    return [part for part in (value or "").split(os.pathsep) if part]
