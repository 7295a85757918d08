"""A complete manifest, and model folders that fit it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hfx.manifest import Manifest, Precision, Source, TritonTarget, hash_folder, write_manifest
from hfx.names import Task


def manifest(name: str = "m", **changes: object) -> Manifest:
    complete = Manifest(
        name=name,
        task=Task.TEXT_CLASSIFICATION,
        source=Source("org/Modell-ü", "0123abcd", "a" * 64),
        precision=Precision("fp32", None),
        opset=17,
        ir=8,
        triton=TritonTarget("24.10", "24.09"),
        folders=(name, f"{name}_net"),
        files={},
        versions={"onnx": "1.23.2"},
        created="2025-01-31T12:00:00Z",
        parity={"logits": {"max": 1.5e-07, "rows": [1, 2, 3]}, "same": True, "none": None},
        choices={"cpu_runtime": {"native_ms": 0.1 + 0.2, "chosen": "native"}},
    )
    return replace(complete, **changes)  # type: ignore[arg-type]


def fill(root: Path, name: str = "m", members: tuple[str, ...] = ("_net",), content: str = "one") -> Manifest:
    """Write the folders of a model and its manifest into `root`, which may be a staging folder; return the manifest."""
    folders = (name, *(name + suffix for suffix in members))
    for folder in folders:
        (root / folder / "1").mkdir(parents=True)
        (root / folder / "config.pbtxt").write_text(f'name: "{folder}" # {content}\n')
        (root / folder / "1" / "data.bin").write_bytes(content.encode() * 100)
    files = {path: entry for folder in folders for path, entry in hash_folder(root / folder, root).items()}
    complete = manifest(name, folders=folders, files=files)
    write_manifest(complete, root / name / "hfx.json")
    return complete


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a damage that replaces a file by what `make` makes."""

    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        make(path)

    return damage


def link(target: str | Path) -> Callable[[Path], None]:
    """Return a damage that replaces a file by a link to `target`."""
    return instead(lambda path: path.symlink_to(target))
