"""llama.cpp's own server, which batches continuously: it gets the very load, over HTTP, in q8_0.

It is compiled from the sources that llama-cpp-python's sdist has. `python -m bench.peers install llama-server` takes
about a quarter of an hour on two cores, and needs cmake and a C++ compiler.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.child import PeerFailed
from bench.peers import THREADS, Model, Way
from bench.peers.processes import free_ports, running
from hfx.errors import FetchFailed
from hfx.perf import cache

LABEL, WAY = "llama-server q8_0", Way("llama.cpp", "q8_0")
PROGRAM = "bin/llama-server"
CELLS = 256  # tokens of a prompt and its answer at most
# Nothing is downloaded while it is built, and neither its pages nor TLS are.
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release", "BUILD_SHARED_LIBS": "OFF", "GGML_NATIVE": "ON", "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF", "LLAMA_BUILD_UI": "OFF", "LLAMA_USE_PREBUILT_UI": "OFF", "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_NUMBER": "0", "LLAMA_BUILD_COMMIT": "sdist",
}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A server that is compiled from the sdist of `pins`."""

    name: str
    pins: tuple[str, ...]

    @property
    def folder(self) -> Path | None:
        """Where it is, None where it was not compiled."""
        return cache.installed(self.name, self.pins)

    def fetch(self) -> None:
        """Compile it where it is not. Raises FetchFailed."""
        cache.made(cache.folder_name(self.name, self.pins), self._compile)

    def _compile(self, folder: Path) -> None:
        with TemporaryDirectory(prefix="hfx-llama-server-") as name:
            scratch, build = Path(name), str(Path(name) / "build")
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            _run([*pip, "--no-binary", ":all:", "--dest", name, *self.pins], "cmake, g++ and pip's index are needed")
            (archive,) = scratch.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
            (source,) = scratch.glob("*/vendor/llama.cpp")
            options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
            _run(["cmake", "-S", str(source), "-B", build, *options], "cmake and g++ are needed")
            command = ["cmake", "--build", build, "--target", "llama-server", "--parallel", str(THREADS)]
            _run(command, "Read its errors, and try again")
            (folder / PROGRAM).parent.mkdir()
            (scratch / "build" / PROGRAM).rename(folder / PROGRAM)


SERVER = Program("llama-server", ("llama-cpp-python==0.3.36",))


@contextmanager
def served(checkpoint: Path, slots: int) -> Iterator[str]:
    """The URL that takes requests, `slots` of them at a time. Raises PeerFailed."""
    if SERVER.folder is None:
        raise PeerFailed("llama-server is not installed: `python -m bench.peers install llama-server` compiles it")
    file = (WAY.folder(Model.of(checkpoint)) or Path()) / "model.gguf"
    (port,) = free_ports(1)
    command = [str(SERVER.folder / PROGRAM), "--model", str(file), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--parallel", str(slots), "--ctx-size", str(slots * CELLS), "--threads", str(THREADS), "--offline"]
    # Threads that sleep between operators would cost two cores 1.8 times as long.
    url = f"http://127.0.0.1:{port}"
    with running(LABEL, command, f"{url}/health", {"GOMP_SPINCOUNT": "100000"}):
        yield f"{url}/completion"


def body(text: str, new: int) -> dict[str, Any]:
    """The JSON of a request for exactly `new` tokens, greedy."""
    return {"prompt": text, "n_predict": new, "ignore_eos": True, "temperature": 0.0}


def _run(command: Sequence[str], hint: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise FetchFailed(f"llama-server can't be compiled: {lines[-1]}.", hint) from None
