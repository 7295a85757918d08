"""Triton releases: the software in each image, as one table with its sources.

Two releases have a special role. Models are built for DEFAULT_TAG, the oldest release that loads their files, and
should run in the image MINIMUM_SECURE, the oldest without known vulnerabilities.

Sources, by column
    ort, python     triton-inference-server/server, docs/introduction/compatibility.md (ONNX Runtime Versions; Python of
                    the images, which is the Python of the backend's stubs). 24.11 is 3.10 there for one image and 3.12
                    for another: None.
    opset, ir       measured: the highest default opset and IR version of a one-node model that `onnxruntime` of exactly
                    this version from PyPI loads; it refuses the next one (ValidateOpsetForDomain in
                    core/graph/model_load_utils.h, and core/graph/model.cc). 25.08 has a development version of ONNX
                    Runtime (1.23.0+1d1712fdaf) that can't be measured: None.

26.09 (2.73) and later releases were not looked at. The newest release that was looked at is 26.08.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hfx.errors import UsageError

DEFAULT_TAG = "24.10"  # the embedded server's: opset 21, IR 10, which every later release loads
MINIMUM_SECURE = "26.07"
BODY_BOUNDED = "25.06"  # triton-inference-server/server #8174: HTTP takes 64 MiB, or --http-max-input-size
QUEUE_POLICY_FIXED = "26.08"  # triton-inference-server/core #509: dynamic batchers with a queue policy no longer stall
BULLETIN = "NVIDIA's security bulletin 5875 of 2026-09-08"  # nvidia.custhelp.com, a_id 5875: fixed in 26.07
GENERATOR_PYTHON = "3.11"  # onnxruntime 1.31, which generators need, has no wheel for an older one


@dataclass(frozen=True, slots=True)
class Release:
    """One Triton release. `opset` and `ir` are the highest that its ONNX Runtime loads; None means "not known"."""

    tag: str
    ort: str
    opset: int | None
    ir: int | None
    python: str | None

    @property
    def image(self) -> str:
        """The full NGC image, for both CPU and GPU."""
        return f"nvcr.io/nvidia/tritonserver:{self.tag}-py3"

    def hfx_image(self, device: str) -> str:
        """Return the image that docker/Dockerfile builds on top of the release, for cpu or gpu."""
        return f"hfx-triton:{self.tag}-{device}"

    def build_command(self, device: str, image: str, platform: str = "") -> list[str]:
        """Return the command that builds `image` in the root of a checkout of hfx, for docker's `platform` if given."""
        arguments = ["--platform", platform] if platform else []
        arguments += ["--build-arg", f"BASE={self.image}", "--build-arg", f"DEVICE={device}"]
        return ["docker", "build", "--file", "docker/Dockerfile", *arguments, "--tag", image, "."]


RELEASES = (
    Release("24.09", ort="1.19.2", opset=21, ir=10, python="3.10"),
    Release("24.10", ort="1.19.2", opset=21, ir=10, python="3.10"),
    Release("24.11", ort="1.19.2", opset=21, ir=10, python=None),
    Release("24.12", ort="1.20.1", opset=21, ir=10, python="3.12"),
    Release("25.01", ort="1.20.1", opset=21, ir=10, python="3.12"),
    Release("25.02", ort="1.20.1", opset=21, ir=10, python="3.12"),
    Release("25.03", ort="1.21.0", opset=22, ir=10, python="3.12"),
    Release("25.04", ort="1.21.0", opset=22, ir=10, python="3.12"),
    Release("25.05", ort="1.22.0", opset=22, ir=10, python="3.12"),
    Release("25.06", ort="1.22.0", opset=22, ir=10, python="3.12"),
    Release("25.07", ort="1.22.0", opset=22, ir=10, python="3.12"),
    Release("25.08", ort="1.23.0+1d1712fdaf", opset=None, ir=None, python="3.12"),
    Release("25.09", ort="1.23.0", opset=23, ir=11, python="3.12"),
    Release("25.10", ort="1.23.1", opset=23, ir=11, python="3.12"),
    Release("25.11", ort="1.23.2", opset=23, ir=11, python="3.12"),
    Release("25.12", ort="1.23.2", opset=23, ir=11, python="3.12"),
    Release("26.01", ort="1.23.2", opset=23, ir=11, python="3.12"),
    Release("26.02", ort="1.24.1", opset=25, ir=13, python="3.12"),
    Release("26.03", ort="1.24.2", opset=25, ir=13, python="3.12"),
    Release("26.04", ort="1.24.4", opset=25, ir=13, python="3.12"),
    Release("26.05", ort="1.24.4", opset=25, ir=13, python="3.12"),
    Release("26.06", ort="1.24.4", opset=25, ir=13, python="3.12"),
    Release("26.07", ort="1.27.0", opset=26, ir=13, python="3.12"),
    Release("26.08", ort="1.28.0", opset=26, ir=13, python="3.12"),
)

_BY_TAG = {entry.tag: entry for entry in RELEASES}


def release(tag: str) -> Release:
    """Return the release with the image tag `tag`, for example "24.10". Raises UsageError for an unknown tag."""
    if tag not in _BY_TAG:
        newest = RELEASES[-1].tag
        is_later = re.fullmatch(r"\d\d\.\d\d", tag) and tag > newest
        later = f"Later releases load what is built for {newest}. " if is_later else ""
        raise UsageError(
            f"hfx does not know the Triton release {tag!r}.",
            f"{later}Choose one of {', '.join(_BY_TAG)}.",
        )
    return _BY_TAG[tag]


def for_generators(built_for: Release) -> Release:
    """Return the oldest release, from `built_for` on, whose Python can run the onnxruntime that generators need."""
    wanted = _numbers(GENERATOR_PYTHON)
    return next(
        entry for entry in RELEASES if entry.tag >= built_for.tag and entry.python and _numbers(entry.python) >= wanted
    )


def security_warning(tag: str) -> str:
    """Return the reason why a server of the release `tag` should not be run; empty if there is no known reason."""
    if tag >= MINIMUM_SECURE:
        return ""
    return f"Triton {tag} has vulnerabilities that {MINIMUM_SECURE} fixes ({BULLETIN})."


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
