"""The output folder of a target: renders templates, copies models, hashes all files, publishes by one rename.

The templates are jinja2's, with StrictUndefined. A value in YAML or JSON must use `tojson` (JSON is YAML), a value in a
shell line the filter `sh` (shlex.quote), and a value in a comment the filter `line`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import IO, Any

import hfx
from hfx.deploy.deployment import Deployment, mib
from hfx.errors import ModelCorrupt, RepositoryError, UsageError
from hfx.manifest import CHUNK_BYTES, FileEntry, hash_folder
from hfx.names import MANIFEST_FILE
from hfx.repository.staging import check_folder, flush_tree, storage

RECORD_FILE = "hfx-deploy.json"  # the target, the models, and the hashes of the files
RECORD_FORMAT = 1
TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE_SUFFIX = ".j2"
LEAST_LINKED = 1 << 16  # bytes: smaller files are copies, which can be edited
Copies = dict[tuple[int, int], tuple[Path, FileEntry]]  # of files with several links, by device and inode


# Rendering


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": True, "sort_keys": False}
    environment.filters |= {"sh": shlex.quote, "line": one_line, "mib": mib}
    return environment


def one_line(text: str) -> str:
    """Return `text` for a comment: as one line, with unprintable characters replaced by spaces."""
    return "".join(character if character.isprintable() else " " for character in str(text))


def render_text(template: str, values: dict[str, Any]) -> str:
    """Render the template at the path `template`. Its names are `values`, and `version` (of hfx)."""
    text: str = _environment().get_template(template).render(version=hfx.__version__, **values)
    return text


def render(target: str, folder: Path, values: dict[str, Any]) -> None:
    """Render every template of templates/TARGET/ into `folder`, under its name without .j2."""
    source = TEMPLATES / target
    for path in sorted(source.rglob(f"*{TEMPLATE_SUFFIX}")):
        text = render_text(path.relative_to(TEMPLATES).as_posix(), values)
        written = folder / path.relative_to(source).with_suffix("")
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text, encoding="utf-8")


# Models


def copy_models(deployment: Deployment, folder: Path) -> None:
    """Copy the published models into `folder`, which becomes a model repository, and hash the files while copying.

    The files are copies, not links, because the user may edit the output. Large files that are links to one another, as
    those of adapters on one backbone, are copied once. Raises ModelCorrupt for a file that was changed meanwhile.
    """
    copies: Copies = {}
    for model in deployment.models:
        for name, entry in model.manifest.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if _copy(deployment.repository / name, folder / name, copies) != entry:
                raise ModelCorrupt(f"{deployment.repository / name} was changed while it was copied.", "Try again.")
        for member in model.manifest.folders:  # Triton needs a version folder, even if it is empty, as for an ensemble
            (folder / member / "1").mkdir(parents=True, exist_ok=True)
        manifest = Path(model.name, MANIFEST_FILE)
        shutil.copyfile(deployment.repository / manifest, folder / manifest)


def _copy(source: Path, target: Path, copies: Copies) -> FileEntry:
    """Copy `source` to the new file `target`, or link `target` to the copy of another link to `source` in `copies`."""
    with source.open("rb") as reader:
        status = os.fstat(reader.fileno())
        key = status.st_dev, status.st_ino
        if key in copies:
            first, entry = copies[key]
            with suppress(OSError):  # a file system without links, or with too many
                os.link(first, target)
                return entry
        copied = copy_hashed(reader, target)
        if status.st_nlink > 1 and status.st_size >= LEAST_LINKED:
            copies[key] = target, copied
        return copied


def copy_hashed(reader: IO[bytes], target: Path) -> FileEntry:
    """Copy `reader` into the new file `target`, and return its hash and size."""
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            size += writer.write(chunk)
    return FileEntry(digest.hexdigest(), size)


# Publication


@contextmanager
def output_folder(output: Path, target: str, deployment: Deployment, force: bool = False) -> Iterator[Path]:
    """Yield a folder beside `output` that replaces it at the end of the block, or is deleted after an exception.

    hfx-deploy.json records the files that the block writes, with their hashes. Raises UsageError if `output` is not
    empty, unless `force` is set and `hfx deploy` wrote it.
    """
    output = Path(os.path.abspath(output))  # noqa: PTH100 - resolve() would follow a link in its place
    check_output(output, force)
    with storage(output.parent):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.hfx-", dir=output.parent) as holder:
            staged = Path(holder) / "new"
            staged.mkdir()
            yield staged
            _write_record(staged, target, deployment)
            flush_tree(staged)
            check_output(output, force)
            if output.exists():
                output.rename(Path(holder) / "old")
            staged.rename(output)


def check_output(output: Path, force: bool) -> None:
    """Raise UsageError if `output` can't be written. Called before the work begins."""
    if output.is_symlink():
        raise UsageError(f"{output} is a link.", "Choose another --output.")
    check_folder(output, "--output")
    if not output.exists() or not any(output.iterdir()):
        return
    if not (output / RECORD_FILE).is_file():
        raise UsageError(f"{output} has files that `hfx deploy` did not write.", "Choose another --output.")
    if not force:
        raise UsageError(f"{output} exists.", "Use --force to replace it, or choose another --output.")


def _write_record(folder: Path, target: str, deployment: Deployment) -> None:
    record = {
        "format": RECORD_FORMAT,
        "target": target,
        "hfx": hfx.__version__,
        "name": deployment.name,
        "models": {model.name: model.manifest.source.sha256 for model in deployment.models},
        "device": deployment.device,
        "arch": deployment.arch,
        "triton": deployment.release.tag,
        "files": {name: asdict(entry) for name, entry in hash_everything(folder).items()},
    }
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def hash_everything(folder: Path) -> dict[str, FileEntry]:
    """Return every file below `folder` except hfx-deploy.json, by relative path.

    The manifests of models are included.
    """
    entries = hash_folder(folder, folder)
    entries.pop(RECORD_FILE, None)
    return dict(sorted(entries.items()))


def written_files(folder: Path) -> Sequence[str]:
    """Return the entries of `folder` to show to a user. Folders end with a slash."""
    return sorted(f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir())


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below `folder`."""
    if not folder.is_dir():
        raise RepositoryError(f"{folder} is not a folder.", "Give a folder that `hfx deploy` wrote.")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
