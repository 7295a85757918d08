"""A checkpoint in a peer's own form, converted once and kept in the cache, with what it took.

Owns the keys of the cache and the clock of a conversion. How a checkpoint is converted stands with each peer.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.peers.memory import peak_bytes
from bench.peers.model import Model
from bench.peers.packages import SEPARATOR
from bench.peers.resident import apart
from hfx.perf import cache

FACTS = "conversion.json"
LIBRARIES = ("torch", "transformers", "onnxruntime", "openvino")

# (model, folder to fill, folders of fetched packages, precision)
Convert = Callable[[Model, str, str, str], None]
Finish = Callable[[Path], None]


@dataclass(frozen=True)
class Conversion:
    """What a conversion took: seconds and peak bytes of its process, bytes of its files before any is dropped."""

    seconds: float
    peak_bytes: int
    disk_bytes: int


def converted(
    stem: str,
    model: Model,
    precision: str,
    convert: Convert,
    fetched: str = "",
    finish: Finish = lambda folder: None,
    sources: Sequence[Path] = (),
) -> Path:
    """The folder that `convert` fills at the first call, in a process of its own. Raises OpenFailed.

    It is made again when the checkpoint, the packages, the file of `convert` or one of `sources` change; what was made
    under the same `stem` before is then removed.
    """
    key = _key(model, precision, convert, fetched, sources)

    def build(folder: Path) -> None:
        arguments = {"convert": convert, "model": model, "folder": str(folder), "fetched": fetched}
        facts = apart(_timed, precision=precision, **arguments)
        finish(folder)
        (folder / FACTS).write_text(json.dumps(asdict(facts)) + "\n", encoding="utf-8")

    folder = cache.made(f"models/{stem}-{key}", build)
    for other in folder.parent.glob(f"{stem}-*"):  # of other checkpoints or sources: nobody comes back to them
        if not other.name.startswith(folder.name):
            shutil.rmtree(other, ignore_errors=True)
    return folder


def conversion(folder: Path) -> Conversion:
    """What the conversion of a `converted` folder took."""
    return Conversion(**json.loads((folder / FACTS).read_text(encoding="utf-8")))


def exporter_sources() -> list[Path]:
    """The files of hfx that decide what an engine folder holds."""
    import hfx.exporter

    root = Path(next(iter(hfx.exporter.__path__)))
    folders = (root / name for name in ("graph", "families", "openvino"))
    return sorted([*(path for folder in folders for path in folder.glob("*.py")), root / "tensors.py"])


def files_key(checkpoint: str) -> str:
    """Changes when a file of the checkpoint is replaced."""
    files = sorted(path for path in Path(checkpoint).rglob("*") if path.is_file())
    facts = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\0".join([checkpoint, *facts]).encode()).hexdigest()[:12]


def _key(model: Model, precision: str, convert: Convert, fetched: str, sources: Sequence[Path]) -> str:
    parts = [model.checkpoint, files_key(model.checkpoint), precision, convert.__name__]
    parts += [Path(each).name for each in fetched.split(SEPARATOR)]
    parts += [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    parts += [path.read_text(encoding="utf-8") for path in (Path(inspect.getfile(convert)), *sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _timed(convert: Convert, model: Model, folder: str, fetched: str, precision: str) -> Conversion:
    begin = time.perf_counter()
    convert(model, folder, fetched, precision)
    disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return Conversion(time.perf_counter() - begin, peak_bytes(), disk)
