"""Installations of tritonserver: in the nvidia-pytriton wheel, or on PATH.

pytriton itself is not imported, because that would slow down the server process and `hfx --help`.
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
from hfx.extras import install_command
from hfx.native.build import unsupported
from hfx.releases import MINIMUM_SECURE, security_warning
from hfx.triton.liveness import SERVER, STUB

BACKENDS_VARIABLE = "HFX_TRITON_BACKENDS"
RELEASE_VARIABLE = "NVIDIA_TRITON_SERVER_VERSION"  # the image's tag in NVIDIA's images; 2.51 has no --version
DEFAULT_BACKENDS = Path("/opt/tritonserver/backends")
PYTHON = "python"
LIBRARY = "libtriton_python.so"
ONNXRUNTIME = "onnxruntime"
HFX_ONNXRUNTIME = "hfx_onnxruntime"  # hfx's own backend, where NVIDIA's has the name above


@dataclass(frozen=True)
class Installation:
    """A tritonserver and its files.

    `binary` is its executable, `environment` the environment of the server and its stubs, `backends` the folder of its
    backends, and `stub` the executable that runs Python models. `arguments` are the arguments that it always needs.
    `release` is the image tag, which is empty if it is unknown. `risk` describes the known risks of running it.
    """

    binary: Path
    environment: Mapping[str, str]
    backends: Path
    stub: Path
    arguments: tuple[str, ...] = ()
    release: str = ""
    risk: str = ""

    def hfx_onnxruntime(self, device: str) -> str | None:
        """Return the name of hfx's onnxruntime backend for hfx's encoders; None if NVIDIA's backend runs them.

        On CPUs, hfx's backend is preferred even if NVIDIA's is there, because it has native operators and pads less
        (docs/benchmarks-encoder.md).
        """
        if not (self.backends / ONNXRUNTIME).is_dir():
            return ONNXRUNTIME  # for all models, as there is no other
        return HFX_ONNXRUNTIME if device == "cpu" and importlib.util.find_spec(ONNXRUNTIME) else None

    def backend_directory(self, folder: Path, device: str = "cpu") -> Path:
        """Return the folder of backends to start the server with.

        This is the installation's own folder, or `folder`, which is filled with the installation's backends and hfx's
        own. Everything in `folder` is a symbolic link, except for the library, because Triton refuses a linked library
        for python-based backends ("backend library name 'libtriton_python.so' escapes backend directory").
        """
        name = self.hfx_onnxruntime(device)
        if name is None:
            return self.backends
        python = folder / PYTHON
        python.mkdir(parents=True)
        shutil.copy2(self.backends / PYTHON / LIBRARY, python)
        beside = {path.name: path for path in (*(self.backends / PYTHON).iterdir(), self.stub)}
        for source in beside.values():
            if source.name != LIBRARY:
                (python / source.name).symlink_to(source)
        for backend in self.backends.iterdir():
            if backend.name != PYTHON:
                (folder / backend.name).symlink_to(backend)
        _link_onnxruntime(folder / name)
        return folder


def _link_onnxruntime(folder: Path) -> None:
    """Fill `folder` with the python-based backend of hfx."""
    from hfx.python_backends.deploy import onnxruntime_files

    for target, source in onnxruntime_files().items():
        link = folder / target
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source.resolve())


def find_on_path() -> Installation:
    """Find the tritonserver on PATH, as in NVIDIA's images. Raises ServerError if it or its backends are missing."""
    found = shutil.which(SERVER)
    if found is None:
        raise ServerError(
            f"There is no {SERVER} on PATH ({os.environ.get('PATH', '')}).",
            "Run this in an image of docker/Dockerfile, put the binary's folder on PATH, or serve --with embedded.",
        )
    backends = _backends(Path(found))
    release = os.environ.get(RELEASE_VARIABLE, "")
    risk = (
        security_warning(release)
        if release
        else (
            f"The release of {found} is not known ({RELEASE_VARIABLE} is not set); those before {MINIMUM_SECURE} have "
            "vulnerabilities."
        )
    )
    return Installation(Path(found), dict(os.environ), backends, backends / PYTHON / STUB, release=release, risk=risk)


def _backends(binary: Path) -> Path:
    """Find the folder of the backends of the tritonserver `binary`. Raises ServerError."""
    if named := os.environ.get(BACKENDS_VARIABLE):
        candidates = [Path(named)]
    else:
        beside = [path.parent.parent / DEFAULT_BACKENDS.name for path in (binary.absolute(), binary.resolve())]
        candidates = [*beside, DEFAULT_BACKENDS]
    for folder in candidates:
        if (folder / PYTHON / LIBRARY).is_file():
            return folder.resolve()
    raise ServerError(
        f"{binary} has no Python backend: there is no {PYTHON}/{LIBRARY} in {' or '.join(map(str, candidates))}.",
        f"Name the folder of its backends by the variable {BACKENDS_VARIABLE}.",
    )


# The wheel


VERSION = "2.51.0"  # = NGC tag 24.10, of nvidia-pytriton 0.7.0
ANOTHER = "Use one of these, or serve in a container: hfx serve --with docker"
RISK = f"The embedded tritonserver {VERSION} lacks the security fixes since 2025; use --with docker instead."


def find_wheel() -> Installation:
    """Find the tritonserver of this environment. Raises ServerError if it is missing or has no stub for this Python."""
    triton = _package() / SERVER
    stub = triton / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}" / STUB
    if not stub.is_file():
        raise ServerError(
            f"The installed nvidia-pytriton has no Python backend for Python {sysconfig.get_python_version()}.",
            f"It has those of 3.11 and 3.12. {ANOTHER}",
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
    """Return the folder of the wheel's shared libraries. Raises ServerError if the wheel is not installed."""
    return _package().parent / "nvidia_pytriton.libs"


def _package() -> Path:
    spec = importlib.util.find_spec("pytriton")
    package = Path(spec.origin).parent if spec and spec.origin else None
    if package is None or not (package / SERVER / "bin" / SERVER).is_file():
        if reason := unsupported():
            raise ServerError(reason, "Serve in a container: hfx serve --with docker")
        command = f"Run: {install_command('embedded')}    (or serve in a container: hfx serve --with docker)"
        raise ServerError(
            "The embedded Triton server needs the package nvidia-pytriton, which is not installed.",
            command if sys.version_info < (3, 13) else f"It is made for Python 3.11 and 3.12. {ANOTHER}",
        )
    return package


def _environment() -> dict[str, str]:
    """Return the environment for the server and its stubs.

    The stub needs the libpython of this interpreter (LIBDIR comes first, as the loader might otherwise take the
    distribution's). It finds its packages in the same way as `python3` on PATH, and ignores PYTHON* variables.
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
