"""Images for the tests, made of Debian packages and of nvidia-pytriton's Triton, without any registry.

`base()` makes an image with the name of NVIDIA's image, so that documented command lines run unchanged. Its entry
point, user and PATH equal those of NVIDIA's image, but it is Debian 12 with Python 3.11. An image is reused until
something that it is made of changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hfx.deploy.compose import PROMETHEUS_IMAGE
from hfx.releases import MINIMUM_SECURE, release
from hfx.triton.installation import find_wheel, libraries
from tests.rigs.files.documents import ROOT, commands

HERE = Path(__file__).parent
BASE = release(MINIMUM_SECURE).image
SERVER = f"hfx-triton:{MINIMUM_SECURE}-cpu"
DEBIAN = "hfx-tests-debian:12"
LABEL = "hfx.tests.digest"
PACKAGES = (
    "ca-certificates,curl,libcurl4,libnuma1,libb64-0d,libarchive13,libgoogle-perftools4,libgomp1,libssl3,libffi8,zlib1g,"
    "libbz2-1.0,liblzma5,libsqlite3-0,libreadline8,libexpat1,libuuid1,libre2-9,python3,python3-pip,libpython3.11"
)
# How this machine reaches package indices, which builds in containers need, too.
MACHINE = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pip.conf"))
# AWS's start script of its images, `serve`: it is not in this project.
SAGEMAKER_SERVE = os.environ.get("HFX_TEST_SAGEMAKER_SERVE", "")
SECONDS = 600.0


def run(*words: str | Path, **options: Any) -> str:
    """Return the output of a command. Raises AssertionError with its last lines if it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=SECONDS, **options)
    assert done.returncode == 0, f"{words[:8]}: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


def base() -> str:
    """Return the name of an image like NVIDIA's."""
    wheel = find_wheel()
    triton = wheel.binary.parents[1]
    made_of = f"{wheel.binary.stat().st_size} {PACKAGES}".encode()
    files = [path for path in sorted((HERE / "base").rglob("*")) if path.is_file()]
    key = _digest(made_of, *(path.read_bytes() for path in (*files, *filter(Path.exists, MACHINE))))

    def fill(context: Path) -> None:
        _debian()
        shutil.copytree(HERE / "base", context, dirs_exist_ok=True)
        for name in ("bin", "caches", "backends"):
            shutil.copytree(triton / name, context / "opt/tritonserver" / name)
        shutil.copytree(libraries(), context / "opt/tritonserver/lib")
        stub = triton / "python_backend_stubs/3.11/triton_python_backend_stub"
        shutil.copy2(stub, context / "opt/tritonserver/backends/python")
        for path in filter(Path.exists, MACHINE):
            (context / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, context / path.relative_to("/"))

    return _made(BASE, key, fill)


def server() -> str:
    """Return the name of hfx's own image, built by the line of docs/serving.md."""
    base()
    [line] = commands("docs/serving.md", "docker build")
    run("bash", "-c", line, cwd=ROOT)
    run("docker", "image", "prune", "--force", "--filter", f"label={LABEL}")  # images of earlier checkouts
    return SERVER


def prometheus() -> str:
    """Return the name of Debian's Prometheus, which is the one in compose.yaml."""

    def fill(context: Path) -> None:
        _debian()
        run("apt-get", "download", "prometheus", cwd=context)
        run("bash", "-c", "dpkg-deb --extract prometheus_*.deb . && rm *.deb", cwd=context)
        (context / "Dockerfile").write_text(
            f"FROM {DEBIAN}\nCOPY usr/bin/ /bin/\nRUN mkdir /prometheus && chown nobody /prometheus\n"
            f'USER nobody\nWORKDIR /prometheus\nVOLUME ["/prometheus"]\nENTRYPOINT ["/bin/prometheus"]\n'
        )

    return _made(PROMETHEUS_IMAGE, _digest(b"2"), fill)


def sagemaker() -> str:
    """Return the name of `base()` with AWS's start script."""
    script = Path(SAGEMAKER_SERVE).read_bytes()

    def fill(context: Path) -> None:
        (context / "serve").write_bytes(script)
        (context / "Dockerfile").write_text(f"FROM {base()}\nCOPY --chmod=755 serve /usr/bin/\n")

    return _made("hfx-tests-sagemaker:1", _digest(script, base().encode()), fill)


def _debian() -> None:
    """Make Debian 12 with the packages that Triton and Python import."""

    def fill(context: Path) -> None:
        if shutil.which("mmdebstrap") is None:
            run("apt-get", "install", "--yes", "--no-install-recommends", "mmdebstrap")
        left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
        sources = "/etc/apt/sources.list.d/debian.sources"
        root = context / "root.tar"
        run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", *left_out, "bookworm", root, sources)
        (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")

    _made(DEBIAN, _digest(PACKAGES.encode()), fill)


def _made(image: str, key: str, fill: Callable[[Path], None]) -> str:
    """Return `image`, built in the context that `fill` fills unless it exists and was made of the same `key`."""
    form = f'{{{{index .Config.Labels "{LABEL}"}}}}'
    done = subprocess.run(["docker", "image", "inspect", "--format", form, image], capture_output=True, text=True)
    if done.stdout.strip() != key:
        with tempfile.TemporaryDirectory(prefix="hfx-") as folder:
            fill(Path(folder))
            run("docker", "build", "--quiet", "--label", f"{LABEL}={key}", "--tag", image, folder)
    return image


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
