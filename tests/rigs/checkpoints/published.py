"""Published models that several tests share: each is exported once and cached by a digest of its inputs.

The key holds the checkpoint, the options, the text of every source file that takes part in an export, the versions of
the libraries, and the processor's instructions. A changed line of the exporter therefore exports every model again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hfx.exporter.generation import prompts
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import export, make_plan
from hfx.exporter.runtime import weight_levels
from hfx.exporter.source import open_checkpoint
from hfx.manifest import Manifest, hash_file, read_manifest
from hfx.names import MANIFEST_FILE
from tests import zoo
from tests.zoo.cache import built

PACKAGE = Path(__file__).parents[3] / "hfx"
SOURCES = ("exporter", "native", "python_backends", "repository", "errors.py", "manifest.py", "names.py", "releases.py")
LIBRARIES = ("hfx", "torch", "transformers", "tokenizers", "onnx", "onnx-ir", "onnxruntime", "numpy")
VNNI = weight_levels() == 127
GENERATORS = ("stories", "summaries", "short-summaries")  # tasks of the zoo


def export_zoo(
    checkpoint: str, repository: Path, name: str, precision: str, runtime: str = "auto", **options: Any
) -> Manifest:
    """Publish a zoo checkpoint, exported for CPU, in `repository`, from the cached export if there is one.

    Generators are compared on few texts, of whose tokens int8 may change a tenth: summaries-t5 loses 6 % in all texts,
    which test_export_generation_trained.py checks.
    """
    if zoo.recipes.BY_NAME[checkpoint].task in GENERATORS and precision == "int8":
        options = {"max_drop": 0.1, **options}
    options = {"name": name, "precision": precision, "device": "cpu", "cpu_runtime": runtime, **options}
    source = zoo.key(zoo.recipes.BY_NAME[checkpoint])
    return _copied(_exported(lambda: zoo.checkpoint(checkpoint), source, options), name, repository)


def export_random(checkpoint: Path, repository: Path, *, name: str, **options: Any) -> Manifest:
    """Publish a checkpoint of random weights like `export_checkpoint`, from the cached export of equal files.

    Generators are compared on few texts.
    """
    options = {"name": name, "precision": "fp32", "device": "cpu", "cpu_runtime": "onnxruntime", **options}
    return _copied(_exported(lambda: checkpoint, _hashes(checkpoint), options), name, repository)


def export_checkpoint(checkpoint: Path, repository: Path, steps: Any = None, **options: Any) -> Manifest:
    """Publish the checkpoint of a folder: fp32 for CPUs and ONNX Runtime, unless `options` say otherwise."""
    chosen: Any = {"precision": "fp32", "device": "cpu", "cpu_runtime": "onnxruntime", **options}
    plan = make_plan(open_checkpoint(str(checkpoint)), ExportOptions(repository=repository, **chosen))
    return export(plan, lambda title: nullcontext(), steps)


@contextmanager
def few_texts(larger: int = 1) -> Iterator[None]:
    """Compare generators on as few texts as a checkpoint that is `larger` steps larger.

    A fault of a tiny model shows in all texts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "EFFORTS", prompts.EFFORTS[larger:])
        yield


def _copied(exported: Path, name: str, repository: Path) -> Manifest:
    """Copy the model `name` of a cached repository into `repository`."""
    manifest = read_manifest(exported / name / MANIFEST_FILE)
    for folder in manifest.folders:
        shutil.copytree(exported / folder, repository / folder)
    return manifest


def _exported(checkpoint: Callable[[], Path], source: object, options: dict[str, Any]) -> Path:
    """Return the cached repository of one model; `source` tells the files of `checkpoint`."""

    def publish(repository: Path) -> None:
        with few_texts():
            export_checkpoint(checkpoint(), repository, **options)

    return cached(options["name"], {"checkpoint": source, "options": options}, publish)


def cached(name: str, source: object, publish: Callable[[Path], None]) -> Path:
    """Return the cached repository `name` that `publish` has written; `source` tells all that it is made of."""
    parts = json.dumps({"source": source, "maker": _maker()}, sort_keys=True)

    def build(repository: Path) -> dict[str, Any]:
        publish(repository)
        return {"source": source}

    return built(name, hashlib.sha256(parts.encode()).hexdigest()[:16], build)


def _hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in `folder`."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hash_file(path).sha256 for path in files}


@cache
def _maker() -> dict[str, str]:
    """Return everything that an export depends on: sources, libraries, processor."""
    digest = hashlib.sha256()
    for part in SOURCES:
        path = PACKAGE / part
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix not in (".pyc", ".so"):
                digest.update(f"{file.relative_to(PACKAGE)}\0".encode() + file.read_bytes())
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"sources": digest.hexdigest(), "processor": _processor(), **versions}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if line.startswith("flags")), "")
