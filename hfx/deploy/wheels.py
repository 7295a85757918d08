"""The packages of a bundle's Python models: fetches them as wheels for the image's Python, and unpacks them.

pip fetches the wheels in a separate process. They are unpacked here, not installed: no code in them is run, every file
is compared with the wheel's RECORD, and the result depends only on the wheels.
"""

from __future__ import annotations

import base64
import csv
import io
import shlex
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hfx.deploy.deployment import CUDA_13_TAG, Deployment
from hfx.deploy.folder import copy_hashed
from hfx.errors import FetchFailed, UsageError
from hfx.manifest import hash_file
from hfx.python_backends.label_net import NET as LABELS_NET

# Change these together with docker/Dockerfile and constraints.txt.
NUMPY, TOKENIZERS = "numpy==1.26.4", "tokenizers==0.23.3"
LLGUIDANCE = "llguidance==1.9.1"
ONNXRUNTIME = {"cpu": "onnxruntime==1.31.1", "gpu": "onnxruntime-gpu==1.31.1"}

GLIBC = (35, 34, 31, 28, 27, 17)  # of glibc 2.x: wheels for these versions run in images from Ubuntu 22.04 on
FETCH_SECONDS = 1800.0
RECORD = "RECORD"
# The errors that zipfile raises for a damaged archive (RuntimeError: encrypted, or with another compression), and the
# errors that are raised here for files that differ from the record.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, RuntimeError, csv.Error, EOFError, StopIteration, ValueError, FileExistsError,
)  # fmt: skip
IMPORTABLE = ("purelib", "platlib")  # folders of NAME.data in a wheel; the others are scripts and headers


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel's file name, its SHA-256 and its size in bytes."""

    name: str
    sha256: str
    size: int


def requirements(deployment: Deployment, with_numpy: bool = True) -> tuple[str, ...]:
    """Return the packages that the Python models of `deployment` import, as pinned requirements.

    These are numpy (with `with_numpy`), tokenizers unless all models are native encoders, llguidance for generators
    (structured outputs), and ONNX Runtime. On GPUs, the image's own backend runs the nets of encoders that are not
    native, but not those of labels beside a tokenizer. Raises UsageError for an image with an older CUDA.
    """
    generators = [model for model in deployment.models if model.is_generator]
    in_python = not all(model.is_native for model in deployment.models)
    # ONNX Runtime's wheel requires numpy, although native models don't import it.
    needed = [each for each, used in ((NUMPY, with_numpy), (TOKENIZERS, in_python), (LLGUIDANCE, generators)) if used]
    if generators and deployment.device == "gpu" and deployment.release.tag < CUDA_13_TAG:
        raise UsageError(
            f"{generators[0].name!r} needs CUDA 13; Triton {deployment.release.tag} has an older one.",
            f"Use --triton {CUDA_13_TAG} or later.",
        )
    of_labels = any(path.endswith(f"/{LABELS_NET}") for model in deployment.models for path in model.manifest.files)
    if generators or deployment.device == "cpu" or of_labels or any(model.is_native for model in deployment.models):
        needed.append(ONNXRUNTIME[deployment.device])
    return tuple(needed)


# Fetching


def fetch(needed: Sequence[str], python: str, machine: str, folder: Path, offline: Path | None) -> tuple[Wheel, ...]:
    """Put the wheels of `needed` for CPython `python` on `machine` into `folder`.

    They come from the folder `offline`, or (None) from an index. Raises FetchFailed with pip's reason.
    """
    download, target = _download(needed, python, machine), f"Python {python} on {machine}"
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *download),
        *(("--isolated", "--no-index", f"--find-links={offline.absolute()}") if offline else ()),
        *("--quiet", f"--dest={folder}"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        reason = done.stderr if done.returncode else ""
    except subprocess.TimeoutExpired:
        reason = f"no end after {FETCH_SECONDS:g} s"
    if reason:
        raise FetchFailed(_refusal(needed, target, offline, reason), _fix(download, offline, reason))
    wheels = sorted(folder.glob("*.whl"))
    return tuple(Wheel(path.name, entry.sha256, entry.size) for path in wheels if (entry := hash_file(path)))


def _refusal(needed: Sequence[str], target: str, offline: Path | None, reason: str) -> str:
    errors = [line for line in reason.splitlines() if line.startswith("ERROR:")] or reason.splitlines()[-1:]
    place = f"the folder {offline}" if offline else "the package index"
    reason = " ".join(line.removeprefix("ERROR:").strip() for line in errors) or "pip gave no reason"
    return f"No wheels of {', '.join(needed)} for {target} in {place}: {reason}"


def _download(needed: Sequence[str], python: str, machine: str) -> list[str]:
    """Return the arguments of `pip download` for `needed` without dependencies, for the image's platform."""
    options = ("--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={python}")
    return ["download", *options, *(f"--platform=manylinux_2_{glibc}_{machine}" for glibc in GLIBC), *needed]


def _fix(download: Sequence[str], offline: Path | None, reason: str) -> str:
    if "No module named pip" in reason:
        return "Run: python -m ensurepip"
    if offline:
        return f"Fetch them there on a machine with a network:\npip {shlex.join(download)}"
    return "Check the network, or give --offline DIR with the wheels."


# Unpacking


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack the modules and the metadata of `wheel` into `folder`.

    Raises FetchFailed if the archive is damaged, or if a file differs from the wheel's RECORD, would be outside
    `folder`, or exists already.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            digests = _digests(archive)
            for member in archive.infolist():
                if not member.is_dir() and (target := _target(PurePosixPath(member.filename))):
                    _extract(archive, member, folder / target, digests.get(member.filename))
    except DAMAGE as error:
        raise FetchFailed(f"The wheel {wheel.name} is damaged: {error}.", "Delete it, and fetch it again.") from error


def _digests(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """Return file -> SHA-256 according to the wheel's RECORD. The hash of RECORD itself is empty."""
    record = next(name for name in archive.namelist() if name.endswith(f".dist-info/{RECORD}") and name.count("/") == 1)
    rows = csv.reader(io.StringIO(archive.read(record).decode()))
    return {row[0]: _digest(row[1]) for row in rows if len(row) > 1 and row[1]} | {record: b""}


def _digest(text: str) -> bytes:
    kind, _, value = text.partition("=")
    if kind != "sha256":
        raise ValueError(f"its {RECORD} has a digest of the kind {kind!r}")
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))


def _target(path: PurePosixPath) -> PurePosixPath | None:
    """Return the path of a wheel's file below the folder of packages; None for scripts and headers."""
    if path.is_absolute() or ".." in path.parts or "\\" in str(path):
        raise ValueError(f"{str(path)!r} leads out of it")
    if not path.parts[0].endswith(".data"):
        return path
    return PurePosixPath(*path.parts[2:]) if path.parts[1] in IMPORTABLE else None


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, expected: bytes | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as reader:
        written = copy_hashed(reader, target)
    if expected is None:
        raise ValueError(f"{member.filename} is not in its {RECORD}")
    if expected and bytes.fromhex(written.sha256) != expected:
        raise ValueError(f"{member.filename} is not as its {RECORD} says")
