"""The models that are measured: exported by hfx's own line, and altered copies of them for comparison.

Owns exports and edits of model folders. It must not know how they are measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hfx import names
from hfx.exporter import pipeline
from hfx.exporter.options import CpuRuntime, ExportOptions
from hfx.exporter.plan import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.manifest import Manifest

Edit = Callable[[Path], None]  # changes the copy whose NAME_net folder it is given


def export(checkpoint: Path, repository: Path, name: str, precision: str, runtime: CpuRuntime = "auto") -> Manifest:
    """Export for CPU into `repository`; returns the manifest, whose `choices` name the runtime."""
    options = ExportOptions(
        name=name,
        precision=precision,
        device="cpu",
        cpu_runtime=runtime,
        repository=repository,
        max_drop=1.0,
        force=True,
        command="python -m bench",
    )
    plan = make_plan(open_checkpoint(str(checkpoint)), options)
    # Random weights answer with near ties, so there is nothing to compare; the gate has its own tests.
    return pipeline.export(plan, _told(name), pipeline.without_gate(plan))


def chosen_runtime(manifest: Manifest) -> str:
    """The CPU runtime that the export found fastest."""
    runtime: Any = manifest.choices["cpu_runtime"]
    return str(runtime["runtime"])


def variant(repository: Path, name: str, new: str, *edits: Edit, widths: Sequence[int] = ()) -> None:
    """A copy NEW of the model NAME in the same repository, its net changed by `edits`, its texts padded to `widths`."""
    for suffix in ("", *names.MEMBER_SUFFIXES):
        source, target = repository / (name + suffix), repository / (new + suffix)
        if not source.is_dir():
            continue
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, copy_function=_link_or_copy, ignore=shutil.ignore_patterns(names.MANIFEST_FILE))
        for config in target.rglob("*.pbtxt"):
            rewrite(config, lambda text: re.sub(rf'"{re.escape(name)}(?=["_])', f'"{new}', text))
    if widths:
        settings = repository / (new + names.TOKENIZE_SUFFIX) / "1" / "settings.json"
        rewrite(settings, lambda text: json.dumps({**json.loads(text), "widths": list(widths)}))
    for edit in edits:
        edit(repository / (new + names.NET_SUFFIX))


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Replace a text file by `change` of it."""
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


def change_configs(net: Path, change: Callable[[str], str]) -> None:
    """`change` the text of every configuration of a net."""
    for config in net.rglob("*.pbtxt"):
        rewrite(config, change)


def _link_or_copy(source: str, target: str) -> None:
    """Weights are shared between copies; what an edit may change is not."""
    if source.endswith(".onnx"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _told(name: str) -> Callable[[str], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def step(title: str) -> Iterator[None]:
        print(f"{name}: {title}", file=sys.stderr, flush=True)
        yield

    return step
