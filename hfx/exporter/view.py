"""The private view of a checkpoint: a temporary folder with the files that an answer depends on, and no other.

Libraries are given this folder, never the user's: they would run code that lies beside the weights
(custom_generate/generate.py under transformers 4, modeling files), follow an adapter to another model, or open whatever
else they know a name for. Small files are copied, weights are links to the files that were looked at.
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
from collections.abc import Iterator, Sequence
from pathlib import Path

from hfx.errors import StorageFull
from hfx.exporter.config_file import MAX_BYTES, TOKENIZER_CONFIG, read_bytes, read_json
from hfx.exporter.weight_files import index_of

PREFIX = "hfx-views-"
LOCK = "lock"
MAX_TOKENIZER_BYTES = 64 << 20  # the largest in use, of 256,000 tokens, have 35 MB
CONFIGS = (
    "config.json",
    "generation_config.json",
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "*_Pooling/config.json",
)
# Without any of these, there is no tokenizer.
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
# Ends of the names of those fields of tokenizer_config.json by which transformers opens other files than the folder's.
PATH_FIELDS = ("_file", "_files", "_spm", "vocab", "merges")


def make_view(folder: Path, weights: Sequence[Path] = ()) -> Path:
    """The view of the checkpoint in `folder` with these `weights`; it is removed when the process ends.

    Raises CheckpointCorrupt for a file that is too large or no regular file, StorageFull without room.
    """
    contents = {path: _content(path, most) for path, most in _small_files(folder, index_of(folder, weights))}
    try:
        view = Path(tempfile.mkdtemp(dir=_views()))
        for path, content in contents.items():
            target = view / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(content)
        for path in weights:
            (view / path.name).symlink_to(path.resolve())
    except OSError as error:
        raise StorageFull(
            f"The files of {folder} can't be copied to {tempfile.gettempdir()}: {error.strerror}.",
            "Free space there, or set TMPDIR to another folder.",
        ) from error
    return view


def _small_files(folder: Path, index: Path | None) -> Iterator[tuple[Path, int]]:
    """The files beside the weights, each with the most bytes that it may have."""
    if index:
        yield index, MAX_BYTES
    for names, most in ((CONFIGS, MAX_BYTES), (TOKENIZERS, MAX_TOKENIZER_BYTES)):
        for name in names:
            yield from ((path, most) for path in sorted(folder.glob(name)))


def _content(file: Path, most: int) -> bytes:
    """What of `file` comes into the view: all of it, but for fields that lead to other files."""
    content = read_bytes(file, most)
    if file.name != TOKENIZER_CONFIG:
        return content
    fields = read_json(file)
    kept = {name: value for name, value in fields.items() if not name.endswith(PATH_FIELDS)}
    return content if kept == fields else json.dumps(kept).encode()


@functools.cache
def _views() -> Path:
    """The folder of all views of this process, which holds a lock on a file in it for as long as it lives."""
    _sweep()
    views, process = Path(tempfile.mkdtemp(prefix=PREFIX)), os.getpid()
    # Locked under another name first: a sweep of another process never meets one that isn't held yet.
    unborn = views / f"{LOCK}.new"
    fcntl.flock(os.open(unborn, os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX)
    unborn.rename(views / LOCK)

    def remove() -> None:
        if os.getpid() == process:  # not in a fork
            shutil.rmtree(views, ignore_errors=True)

    atexit.register(remove)
    return views


def _sweep() -> None:
    """Remove the views of this user's processes that were killed: the kernel has freed their locks."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # its process lives, or another sweep was faster
            if lock.parent.lstat().st_uid == os.getuid():
                with lock.open("rb") as stream:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)
