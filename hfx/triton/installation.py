"""Where a tritonserver is and what it runs with: that of the nvidia-pytriton wheel (wheel.py), or the one on PATH."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import ServerError
from hfx.releases import MINIMUM_SECURE, security_warning
from hfx.triton.liveness import SERVER, STUB

BACKENDS_VARIABLE = "HFX_TRITON_BACKENDS"
RELEASE_VARIABLE = "NVIDIA_TRITON_SERVER_VERSION"  # in NVIDIA's images their tag; 2.51 has no --version
DEFAULT_BACKENDS = Path("/opt/tritonserver/backends")
PYTHON = "python"
LIBRARY = "libtriton_python.so"
ONNXRUNTIME = "onnxruntime"
HFX_ONNXRUNTIME = "hfx_onnxruntime"  # hfx's, beside one of NVIDIA's


@dataclass(frozen=True)
class Installation:
    """A tritonserver and what belongs to it.

    `binary` is its executable, `environment` that of the server and its stubs, `backends` the folder of its backends,
    `stub` the executable that runs Python models, `arguments` what it needs wherever it runs. `release` is the image
    tag, empty where that is not known; `risk` says what is known against running it.
    """

    binary: Path
    environment: Mapping[str, str]
    backends: Path
    stub: Path
    arguments: tuple[str, ...] = ()
    release: str = ""
    risk: str = ""

    def hfx_onnxruntime(self, device: str) -> str | None:
        """The name of hfx's onnxruntime among the backends, which runs hfx's encoders; None where NVIDIA's does.

        On CPUs hfx's is taken beside NVIDIA's: it has native operators and pads less (docs/benchmarks-encoder.md).
        """
        if not (self.backends / ONNXRUNTIME).is_dir():
            return ONNXRUNTIME  # for all models: there is no other
        return HFX_ONNXRUNTIME if device == "cpu" and importlib.util.find_spec(ONNXRUNTIME) else None

    def backend_directory(self, folder: Path, device: str = "cpu") -> Path:
        """The folder of backends to start it with: its own, or `folder`, made of those and of hfx's.

        Everything in `folder` is a symbolic link, except for the library: Triton refuses a linked one for python-based
        backends ("backend library name 'libtriton_python.so' escapes backend directory").
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
    """The tritonserver on PATH, as in NVIDIA's images; raises ServerError without one, and without its backends."""
    found = shutil.which(SERVER)
    if found is None:
        raise ServerError(
            f"There is no {SERVER} on PATH ({os.environ.get('PATH', '')}).",
            "Run this in an image of docker/Dockerfile, put the binary's folder on PATH, or serve --with embedded.",
        )
    backends = _backends(Path(found))
    release = os.environ.get(RELEASE_VARIABLE, "")
    risk = security_warning(release) if release else _unknown(found)
    return Installation(Path(found), dict(os.environ), backends, backends / PYTHON / STUB, release=release, risk=risk)


def _backends(binary: Path) -> Path:
    """The folder of the backends of the tritonserver `binary`."""
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


def _unknown(binary: str) -> str:
    return (
        f"The release of {binary} is not known ({RELEASE_VARIABLE} is not set); those before {MINIMUM_SECURE} have "
        "vulnerabilities."
    )
