"""The files of a checkpoint: its weights, and its view, a temporary folder with the files that an answer depends on.

Libraries get this folder, never the user's: they would run code beside the weights (custom_generate/generate.py under
transformers 4, modeling files), follow an adapter to another model, or open any other file that they know by name.
Small files are copied; weights are links to the files that were checked.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, StorageFull
from hfx.exporter.config_file import (
    AGAIN,
    GLINER_CONFIG,
    MAX_BYTES,
    TOKENIZER_CONFIG,
    as_native,
    read_bytes,
    read_json,
)

PREFIX = "hfx-views-"
LOCK = "lock"
MAX_TOKENIZER_BYTES = 64 << 20  # the largest files in use, with 256,000 tokens, have 35 MB
OWN_CONFIGS = ("Pooling", "Dense", "LayerNorm", "Normalize", "LogitScore", "SparseStaticEmbedding")  # modules
CONFIGS = (
    "config.json",
    GLINER_CONFIG,
    "generation_config.json",
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "modules.json",
    "router_config.json",
    "artifact.metadata",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    *(f"*_{module}/config.json" for module in OWN_CONFIGS),
)
# A checkpoint without any of these has no tokenizer.
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "spiece.model",
    "spm.model",
    "source.spm",
)
TOKENIZERS = (
    *TOKENIZER_FILES, "merges.txt", "bpe.codes", "dict.txt", "tokenizer.model", "target.spm", "target_vocab.json",
)  # fmt: skip
LABELS_TOKENIZER = "labels_tokenizer"  # the folder of the second tokenizer of a GLiNER with two encoders
# Fields of tokenizer_config.json with these endings make transformers open files outside the folder.
PATH_FIELDS = ("_file", "_files", "_spm", "vocab", "merges")
SAFE_WEIGHTS, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED_WEIGHTS, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Modules of sentence-transformers that have weights of their own.
MODULE_WEIGHTS = tuple(
    f"*_{module}/{file}"
    for module in ("Dense", "LayerNorm", "SparseStaticEmbedding")
    for file in (SAFE_WEIGHTS, PICKLED_WEIGHTS)
)
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def make_view(
    folder: Path, weights: Sequence[Path] = (), base: Path | None = None, config: Mapping[str, Any] | None = None
) -> Path:
    """Make the view of the checkpoint in `folder` with these `weights`; it is removed when the process ends.

    The tokenizer is that in the folder `base` if there is one. If `config` is given, it is the contents of config.json.
    Raises CheckpointCorrupt if a file is too large or no regular file, and StorageFull if there is no room.
    """
    homes = dict.fromkeys((folder, *(path.parent for path in weights), folder / LABELS_TOKENIZER))
    contents = {
        path.relative_to(folder): _content(path, most)
        for path, most in _small_files(homes, index_of(folder, weights))
        if path.name != GLINER_CONFIG
    }
    if base:
        of_base = _small_files([base], None)
        contents |= {path.relative_to(base): _content(path, most) for path, most in of_base if path.parent == base}
    if config is not None:
        contents[Path("config.json")] = json.dumps(config).encode()
    try:
        view = Path(tempfile.mkdtemp(dir=_views()))
        for path, content in contents.items():
            target = view / path
            target.parent.mkdir(exist_ok=True, parents=True)
            target.write_bytes(content)
        for path in (*weights, *chain.from_iterable(map(folder.glob, MODULE_WEIGHTS))):
            target = view / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True, parents=True)
            target.symlink_to(path.resolve())
    except OSError as error:
        raise StorageFull(
            f"The files of {folder} can't be copied to {tempfile.gettempdir()}: {error.strerror}.",
            "Free space there, or set TMPDIR to another folder.",
        ) from error
    return view


def _small_files(folders: Iterable[Path], index: Path | None) -> Iterator[tuple[Path, int]]:
    """Yield the files of `folders` other than the weights, each with the most bytes that it may have."""
    if index:
        yield index, MAX_BYTES
    for names, most in ((CONFIGS, MAX_BYTES), (TOKENIZERS, MAX_TOKENIZER_BYTES)):
        for folder, name in product(folders, names):
            yield from ((path, most) for path in sorted(folder.glob(name)))


def _content(file: Path, most: int) -> bytes:
    """Return the contents of `file` for the view: without fields that lead to other files, and a config `as_native`."""
    content = read_bytes(file, most)
    if file.name not in (TOKENIZER_CONFIG, "config.json"):
        return content
    fields = read_json(file)
    if file.name == "config.json":
        kept = as_native(file, fields)
    else:
        kept = {name: value for name, value in fields.items() if not name.endswith(PATH_FIELDS)}
    return content if kept == fields else json.dumps(kept).encode()


@functools.cache
def _views() -> Path:
    """Return the folder of all views of this process, which holds a lock on a file in the folder until it ends."""
    _sweep()
    views, process = Path(tempfile.mkdtemp(prefix=PREFIX)), os.getpid()
    # Lock the file under another name first, so that another process's sweep never finds a lock that isn't held yet.
    unborn = views / f"{LOCK}.new"
    fcntl.flock(os.open(unborn, os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX)
    unborn.rename(views / LOCK)

    def remove() -> None:
        if os.getpid() == process:  # not in a fork
            shutil.rmtree(views, ignore_errors=True)

    atexit.register(remove)
    return views


def _sweep() -> None:
    """Remove the views of this user's killed processes: the kernel has freed their locks."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # its process is alive, or another sweep was faster
            if lock.parent.lstat().st_uid == os.getuid():
                with lock.open("rb") as stream:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)


def find_weights(folder: Path) -> tuple[Path, ...]:
    """Return the weight files that transformers loads from `folder`, each complete as far as its header tells.

    Safetensors come before pickles and a single file before shards, as in transformers, so that the checked files are
    the loaded files. Raises CheckpointCorrupt or CheckpointUnsafe, naming the file.
    """
    for single, index in ((SAFE_WEIGHTS, SAFE_INDEX), (PICKLED_WEIGHTS, PICKLED_INDEX)):
        if (folder / single).is_file():
            return checked_weights(folder / single)
        if (folder / index).is_file():
            return checked_weights(*_shards(folder, folder / index, Path(single).suffix))
    raise CheckpointCorrupt(
        f"{folder} has no weights ({SAFE_WEIGHTS} or {PICKLED_WEIGHTS}).",
        "Save them beside config.json: model.save_pretrained(FOLDER).",
    )


def has_weights(folder: Path) -> bool:
    """Return whether `folder` has a file by which `find_weights` finds the weights."""
    return any((folder / name).is_file() for name in (SAFE_WEIGHTS, SAFE_INDEX, PICKLED_WEIGHTS, PICKLED_INDEX))


def index_of(folder: Path, weights: Sequence[Path]) -> Path | None:
    """Return the index by which transformers finds the `weights` of `folder`; None if they are a single file."""
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
            raise CheckpointCorrupt(f"{index} names {name!r}, which is not a {suffix} file.", AGAIN)
        if len(os.fsencode(name)) > os.pathconf(folder, "PC_NAME_MAX") or not (folder / name).is_file():
            raise CheckpointCorrupt(f"{index} names {name[:100]!r}, which is missing.", AGAIN)
    if not isinstance(contents.get("metadata"), dict):
        raise CheckpointCorrupt(f"{index} has no metadata, without which transformers doesn't read it.", AGAIN)
    return [folder / name for name in names]


def checked_weights(*files: Path) -> tuple[Path, ...]:
    """Return `files`, which must be whole as far as their headers tell. Raises CheckpointCorrupt, naming the file."""
    for file in files:
        with file.open("rb") as stream:
            if stream.read(len(LFS_POINTER)) == LFS_POINTER:
                raise CheckpointCorrupt(f"{file} is a Git LFS pointer, not the weights.", "Run `git lfs pull` there.")
        if file.suffix == ".safetensors":
            _check_safetensors(file)
    return files


def stored_shapes(files: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    """Return the tensor shapes in `files`, by name. Raises CheckpointCorrupt and CheckpointUnsafe."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        if file.suffix != ".safetensors":
            found = unpickled(file)
            tensors = found.items() if isinstance(found, dict) else ()
            shapes |= {str(name): tuple(getattr(tensor, "shape", ())) for name, tensor in tensors}
            continue
        with safe_open(os.fspath(file), framework="np") as stored:
            shapes |= {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    return shapes


def unpickled(file: Path) -> Any:
    """Return the contents of a pickle of plain tensors, memory-mapped if the file's format allows it.

    Raises CheckpointCorrupt for a damaged file, and CheckpointUnsafe for a pickle with other objects.
    """
    import pickle

    import torch

    try:
        with contextlib.suppress(RuntimeError):  # the format before torch 1.6 can't be mapped
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Weights only load failed" not in str(error):
            raise CheckpointCorrupt(f"{file} is truncated or damaged.", AGAIN) from error
        raise CheckpointUnsafe(
            f"The pickle {file} holds something else than plain tensors; it was not run.",
            "Convert it to safetensors where you trust it: model.save_pretrained(FOLDER).",
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(f"{file} is truncated or damaged.", AGAIN) from error


def _check_safetensors(file: Path) -> None:
    """Check the header and the length of `file`: safetensors refuses overlaps, gaps and lengths that don't fit.

    Raises CheckpointCorrupt.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(file), framework="np") as tensors:
            if not tensors.keys():
                raise CheckpointCorrupt(f"{file} holds no tensor.", AGAIN)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointCorrupt(f"{file} is truncated or damaged: {error}.", AGAIN) from error
