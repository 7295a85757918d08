"""The weight files of a checkpoint folder, found as transformers finds them and looked at before anyone loads them.

Whether the tensors fit the config is checked by load.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe
from hfx.exporter.config_file import AGAIN, read_json

SAFE_WEIGHTS, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED_WEIGHTS, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def find_weights(folder: Path) -> tuple[Path, ...]:
    """The weight files that transformers loads from `folder`, each one whole as far as its header tells.

    Safetensors come before pickles and a single file before shards, as in transformers: what was looked at is what is
    loaded. Raises CheckpointCorrupt or CheckpointUnsafe, naming the file.
    """
    for single, index in ((SAFE_WEIGHTS, SAFE_INDEX), (PICKLED_WEIGHTS, PICKLED_INDEX)):
        if (folder / single).is_file():
            return _checked(folder / single)
        if (folder / index).is_file():
            return _checked(*_shards(folder, folder / index, Path(single).suffix))
    raise CheckpointCorrupt(
        f"{folder} has no weights ({SAFE_WEIGHTS} or {PICKLED_WEIGHTS}).",
        "Save them beside config.json: model.save_pretrained(FOLDER).",
    )


def index_of(folder: Path, weights: Sequence[Path]) -> Path | None:
    """The index by which transformers finds the `weights` of `folder`; None where they are a single file."""
    if not weights or weights[0].name in (SAFE_WEIGHTS, PICKLED_WEIGHTS):
        return None
    return folder / (SAFE_INDEX if weights[0].suffix == ".safetensors" else PICKLED_INDEX)


def _shards(folder: Path, index: Path, suffix: str) -> list[Path]:
    contents = read_json(index)
    weight_map = contents.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointCorrupt(f"{index} has no weight_map.", AGAIN)
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name or name == "..":
            raise CheckpointUnsafe(f"{index} names {name!r}, outside the checkpoint.", "Use a checkpoint you trust.")
        if not name.endswith(suffix):
            raise CheckpointCorrupt(f"{index} names {name!r}, which is no {suffix} file.", AGAIN)
        if len(os.fsencode(name)) > os.pathconf(folder, "PC_NAME_MAX") or not (folder / name).is_file():
            raise CheckpointCorrupt(f"{index} names {name[:100]!r}, which is missing.", AGAIN)
    if not isinstance(contents.get("metadata"), dict):
        raise CheckpointCorrupt(f"{index} has no metadata, without which transformers doesn't read it.", AGAIN)
    return [folder / name for name in names]


def _checked(*files: Path) -> tuple[Path, ...]:
    for file in files:
        with file.open("rb") as stream:
            if stream.read(len(LFS_POINTER)) == LFS_POINTER:
                raise CheckpointCorrupt(f"{file} is a Git LFS pointer, not the weights.", "Run `git lfs pull` there.")
        if file.suffix == ".safetensors":
            _check_safetensors(file)
    return files


def _check_safetensors(file: Path) -> None:
    """The header and the file's length; safetensors refuses overlaps, holes and lengths that don't fit."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(file), framework="np") as tensors:
            if not tensors.keys():
                raise CheckpointCorrupt(f"{file} holds no tensor.", AGAIN)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointCorrupt(f"{file} is truncated or damaged: {error}.", AGAIN) from error
