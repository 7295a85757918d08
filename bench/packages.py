"""Packages of peers, pinned and fetched once, seen by the peer's own process alone; and conversions kept beside them.

They come first on the path of that process. Torch and ONNX Runtime stay the environment's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.child import PeerFailed, apart
from hfx.perf import cache

LIBRARIES = ("torch", "transformers", "onnxruntime")
FACTS = "conversion.json"


@dataclass(frozen=True)
class Packages:
    """A pinned set (each NAME==VERSION); `finish` changes what was installed so that it runs."""

    name: str
    pins: tuple[str, ...]
    finish: Callable[[Path], None] = lambda folder: None

    @property
    def folder(self) -> Path | None:
        """Where they are, None where they were not fetched."""
        return cache.installed(self.name, self.pins)

    def fetch(self) -> None:
        """Install them where they are not. Raises FetchFailed."""
        cache.packages(self.name, self.pins, self.finish)


# For peers that don't run with the transformers of hfx.
TRANSFORMERS_4 = Packages("transformers", ("transformers==4.57.6", "huggingface_hub==0.36.2", "tokenizers==0.22.2"))


def use(needed: Sequence[Packages]) -> None:
    """Import from these packages first. Raises PeerFailed for those that are not installed."""
    if missing := [each.name for each in needed if each.folder is None]:
        raise PeerFailed(f"{', '.join(missing)} is not installed: `python -m bench.peers install` fetches it")
    sys.path[:0] = [str(each.folder) for each in needed]
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # it would report use


def converted(stem: str, sources: Sequence[Path], convert: Callable[..., None], **arguments: Any) -> Path:
    """The folder that `convert(folder=…, **arguments)` fills at the first call, in a process of its own.

    It is made again when arguments, the libraries' versions, or a file of `sources` change; the old one is removed.
    Raises PeerFailed.
    """
    digest = hashlib.sha256(repr((arguments, [importlib.metadata.version(name) for name in LIBRARIES])).encode())
    for path in sources:
        digest.update(path.read_bytes())
    stem = f"{stem}-{hashlib.sha256(repr(arguments).encode()).hexdigest()[:6]}"
    name = f"models/{stem}-{digest.hexdigest()[:12]}"
    folder = cache.made(name, lambda staging: apart(timed, convert=convert, folder=str(staging), arguments=arguments))
    for other in folder.parent.glob(f"{stem}-*"):
        if not other.name.startswith(folder.name):
            shutil.rmtree(other, ignore_errors=True)
    return folder


def conversion(folder: Path) -> Mapping[str, float]:
    """What the conversion of a `converted` folder took: `seconds`, `gigabytes` of memory at most, and on `disk`."""
    return dict(json.loads((folder / FACTS).read_text(encoding="utf-8")))


def timed(convert: Callable[..., None], folder: str, arguments: dict[str, Any]) -> None:
    """`convert`, with what it took in a file of the folder."""
    begin = time.perf_counter()
    convert(folder=folder, **arguments)
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(kind).ru_maxrss for kind in kinds)  # of this process, or of one that it started
    disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    facts = {"seconds": time.perf_counter() - begin, "gigabytes": peak * 1024 / 1e9, "disk": disk / 1e9}
    (Path(folder) / FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")
