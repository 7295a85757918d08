"""The output of a target: files rendered from templates, models copied and compared, all hashed, published by a rename.

Templates are jinja2's with StrictUndefined. A value reaches a YAML or JSON file only through `tojson` (JSON is YAML), a
shell line only through the filter `sh` (shlex.quote), a comment only through the filter `line`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import IO, Any

import hfx
from hfx.deploy.deployment import Deployment, mib
from hfx.errors import ModelCorrupt, RepositoryError, UsageError
from hfx.manifest import CHUNK_BYTES, FileEntry, hash_folder
from hfx.names import MANIFEST_FILE
from hfx.repository.staging import flush_tree, storage

RECORD_FILE = "hfx-deploy.json"  # which target made the folder of what, and the hashes of its files
RECORD_FORMAT = 1
TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE_SUFFIX = ".j2"


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
    """`text` as a comment can hold it: one line of printable characters."""
    return "".join(character if character.isprintable() else " " for character in str(text))


def render_text(template: str, values: dict[str, Any]) -> str:
    """The text of the template at the path `template`; `values` are its names, `version` is that of hfx."""
    text: str = _environment().get_template(template).render(version=hfx.__version__, **values)
    return text


def render(target: str, folder: Path, values: dict[str, Any]) -> None:
    """Render every template of templates/TARGET/ into `folder`, under its name without the ending .j2."""
    source = TEMPLATES / target
    for path in sorted(source.rglob(f"*{TEMPLATE_SUFFIX}")):
        text = render_text(path.relative_to(TEMPLATES).as_posix(), values)
        written = folder / path.relative_to(source).with_suffix("")
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text, encoding="utf-8")


# Models


def copy_models(deployment: Deployment, folder: Path) -> None:
    """Copy the published models into `folder`, a model repository of its own; each hashed on the way.

    Copies, not links: the output is the user's to edit, a published file is not. Raises ModelCorrupt for a file that
    was changed meanwhile.
    """
    for model in deployment.models:
        for name, entry in model.manifest.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (deployment.repository / name).open("rb") as reader:
                copied = copy_hashed(reader, folder / name)
            if copied != entry:
                raise ModelCorrupt(f"{deployment.repository / name} was changed while it was copied.", "Try again.")
        for member in model.manifest.folders:  # Triton wants a version folder, and an ensemble's may be empty
            (folder / member / "1").mkdir(parents=True, exist_ok=True)
        manifest = Path(model.name, MANIFEST_FILE)
        shutil.copyfile(deployment.repository / manifest, folder / manifest)


def copy_hashed(reader: IO[bytes], target: Path) -> FileEntry:
    """Write what `reader` has to the new file `target`, and return its hash and size."""
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            size += writer.write(chunk)
    return FileEntry(digest.hexdigest(), size)


# Publication


@contextmanager
def output_folder(output: Path, target: str, deployment: Deployment, force: bool = False) -> Iterator[Path]:
    """A folder beside `output` that takes its place when the block ends well, and is deleted otherwise.

    The files that the block writes are recorded in hfx-deploy.json with their hashes. Raises UsageError where `output`
    holds anything: with `force` it is replaced if `hfx deploy` made it.
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
    """Raise UsageError when `output` can't be written: call it before the work, not after it."""
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UsageError(f"{output} is not a folder.", "Choose another --output.")
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
        "triton": deployment.release.tag,
        "files": {name: asdict(entry) for name, entry in hash_everything(folder).items()},
    }
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def hash_everything(folder: Path) -> dict[str, FileEntry]:
    """Every file below `folder` by its relative path, manifests of models included, hfx-deploy.json left out."""
    entries = hash_folder(folder, folder)
    entries.pop(RECORD_FILE, None)
    return dict(sorted(entries.items()))


def written_files(folder: Path) -> Sequence[str]:
    """What a person sees of an output: its top entries, folders with a slash."""
    return sorted(f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir())


def folder_bytes(folder: Path) -> int:
    """The size of all files below `folder`."""
    if not folder.is_dir():
        raise RepositoryError(f"{folder} is not a folder.", "Give a folder that `hfx deploy` wrote.")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
