"""Published models that several tests share: each is exported once and cached by a digest of its inputs.

The key holds the checkpoint, the options, the text of every source file that takes part in an export, the versions of
the libraries, and the processor's instructions. A changed line of the exporter therefore exports every model again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Iterator
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
from hfx.manifest import Manifest, read_manifest
from hfx.names import MANIFEST_FILE
from tests import zoo
from tests.zoo.cache import built

PACKAGE = Path(__file__).parents[3] / "hfx"
SOURCES = ("exporter", "native", "python_backends", "repository", "errors.py", "manifest.py", "names.py", "releases.py")
LIBRARIES = ("hfx", "torch", "transformers", "tokenizers", "onnx", "onnx-ir", "onnxruntime", "openvino", "numpy")
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
    made = _exported(checkpoint, options)
    manifest = read_manifest(made / name / MANIFEST_FILE)
    for folder in manifest.folders:
        shutil.copytree(made / folder, repository / folder)
    return manifest


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


def _exported(checkpoint: str, options: dict[str, Any]) -> Path:
    """Return the cached repository of one model."""
    parts = {"checkpoint": zoo.key(zoo.recipes.BY_NAME[checkpoint]), "options": options, "maker": _maker()}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def build(folder: Path) -> dict[str, Any]:
        with few_texts():
            export_checkpoint(zoo.checkpoint(checkpoint), folder, **options)
        return {"checkpoint": checkpoint, "options": options}

    return built(options["name"], key, build)


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
