"""Changing settings of a published model: its configurations, its manifest, and nothing else of it.

In place a change is a publication like every other (publish): a crash leaves the old model or the new one. Large files
are hard links: published files are replaced, never written to.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hfx.errors import ModelCorrupt, RepositoryError
from hfx.manifest import FileEntry, Manifest, created_now, hash_file, verify_files, write_manifest
from hfx.names import MANIFEST_FILE, check_name
from hfx.repository.catalog import model
from hfx.repository.config_pbtxt import CONFIG, MAX_CONFIG_BYTES, VARIANTS, config_path, parse_config, render_message
from hfx.repository.lint import check_rules
from hfx.repository.publish import publish, recover
from hfx.repository.staging import Staging, storage
from hfx.strict_json import Json, read_text

COPIED_BYTES = 1 << 20  # up to here a copy costs nothing; beyond it, files are linked
RECORD = "tuned"  # in the manifest's choices
FIELDS = ("instances", "max_batch_size", "max_queue_delay_microseconds", "default_model_filename")
PARAMETER = "parameters."
Value = int | str


@dataclass(frozen=True, slots=True)
class Edit:
    """`field` of the configuration of the model folder `folder` becomes `value`.

    `field` is one of FIELDS, or `parameters.KEY` of a key that is there. `device` limits it to configs/DEVICE.pbtxt,
    and config.pbtxt where that says the same; without it every configuration of the folder is changed.
    """

    folder: str
    field: str
    value: Value
    device: str = ""


def value(repository: Path, folder: str, field: str, device: str = "") -> Value | None:
    """What the configuration of `folder` says now; None where it has no such field, or is absent."""
    path = config_path(repository / folder, device)
    return _read(_holder(parse_config(read_text(path, MAX_CONFIG_BYTES)), field)) if path.is_file() else None


def changed_copy(
    repository: Path, name: str, edits: Sequence[Edit], target: Path, made_by: str, record: Mapping[str, Json] = {}
) -> Manifest:
    """Copy NAME with its members into the folder `target`, a repository of its own, changed by `edits`.

    The copy is not linted. Raises ModelMissing, ModelCorrupt for files that are not as the manifest says, and
    RepositoryError for a field that a configuration hasn't got or a value that it can't take.
    """
    manifest = model(repository, check_name(name))
    changed = _changed_texts(repository, manifest, edits, made_by)
    files = dict(manifest.files)
    with storage(target):
        for folder in manifest.folders:
            (target / folder).mkdir(parents=True)  # none may be there: a file in it could be a link to a published one
        for path, entry in manifest.files.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            if path in changed:
                (target / path).write_text(changed[path], encoding="utf-8")
                files[path] = hash_file(target / path)
            else:
                _link(repository / path, target / path, entry)
        choices = _choices(manifest, edits if changed else (), made_by, record)
        manifest = replace(manifest, files=files, choices=choices)
        write_manifest(manifest, target / name / MANIFEST_FILE)
    return manifest


def change(
    repository: Path, name: str, edits: Sequence[Edit], made_by: str, record: Mapping[str, Json] = {}
) -> Manifest:
    """Change NAME in place, as a whole or not at all, and return its manifest.

    `made_by` is the command as the configurations' comments name it, without paths; `record` is kept in the manifest
    beside the changes. Nothing happens where every value is there already. Raises as changed_copy does, and LintFailed.
    """
    recover(repository)
    before = model(repository, check_name(name))
    if problems := verify_files(before, repository):
        raise ModelCorrupt(f"{name!r} is not as it was published: {problems[0].message}", "Export it again.")
    if not _changed_texts(repository, before, edits, made_by):
        return before
    with Staging(repository, name) as staging:
        changed_copy(repository, name, edits, staging.root, made_by, record)
        check_rules(staging.root, before.triton.minimum, "Choose other values; nothing was changed.")
        if model(repository, name) != before:
            raise RepositoryError(f"{name!r} was published again meanwhile.", "Try again.")
        return publish(staging, replace=True)


@contextmanager
def scratch(repository: Path, name: str) -> Iterator[Path]:
    """A folder for changed copies of NAME, on the repository's file system so that they cost no space.

    It is deleted on leaving, and by recover() after a crash. Where the repository can't be written to, it lies in the
    folder for temporary files.
    """
    if os.access(repository, os.W_OK):
        with Staging(repository, name) as staging:
            yield staging.path
    else:
        with TemporaryDirectory(prefix="hfx-") as folder:
            yield Path(folder)


# Fields


def _holder(message: Any, field: str) -> tuple[Any, str] | None:
    """The protobuf message and the attribute of it that hold `field`; None where the configuration has no such field.

    Raises RepositoryError for a field that can't be changed.
    """
    if field.startswith(PARAMETER):
        key = field.removeprefix(PARAMETER)
        return (message.parameters[key], "string_value") if key in message.parameters else None
    if field == "instances":
        return (message.instance_group[0], "count") if len(message.instance_group) == 1 else None
    if field == "max_queue_delay_microseconds":
        return (message.dynamic_batching, field) if message.HasField("dynamic_batching") else None
    if field in ("max_batch_size", "default_model_filename"):
        return message, field
    raise RepositoryError(f"{field!r} can't be changed.", f"Choose from {', '.join(FIELDS)}, {PARAMETER}KEY.")


def _read(holder: tuple[Any, str] | None) -> Value | None:
    """The value of a field. A parameter, which is always a string, becomes an int if it has up to 9 digits."""
    if holder is None:
        return None
    current: Value = getattr(*holder)
    return int(current) if isinstance(current, str) and re.fullmatch("[0-9]{1,9}", current) else current


# Configurations


def _changed_texts(repository: Path, manifest: Manifest, edits: Sequence[Edit], made_by: str) -> dict[str, str]:
    """The new text of every configuration that changes, by its path in the manifest."""
    texts = {}
    for folder in dict.fromkeys(edit.folder for edit in edits):
        if folder not in manifest.folders:
            raise RepositoryError(f"{manifest.name!r} has no folder {folder!r}.", f"It has {manifest.folders}.")
        configs = _configs(repository, manifest, folder)
        for path, old in configs.items():
            new = parse_config(old)
            own = [edit for edit in edits if edit.folder == folder and path in _paths(configs, edit)]
            changes = [description for edit in own if (description := _apply(new, edit))]
            if changes:
                texts[path] = rendered(old, new, f"Changed by: {made_by} ({', '.join(changes)})")
    return texts


def _configs(repository: Path, manifest: Manifest, folder: str) -> dict[str, str]:
    """The texts of a folder's configurations, compared with the manifest."""
    texts = {}
    for path, entry in manifest.files.items():
        if path == f"{folder}/{CONFIG}" or path.startswith(f"{folder}/{VARIANTS}/"):
            texts[path] = read_text(repository / path, MAX_CONFIG_BYTES)
            if hash_file(repository / path) != entry:
                raise _not_as_published(repository / path)
    return texts


def _paths(texts: Mapping[str, str], edit: Edit) -> set[str]:
    """Which of the configurations `texts` of its folder an edit changes."""
    own, shared = f"{edit.folder}/{VARIANTS}/{edit.device}.pbtxt", f"{edit.folder}/{CONFIG}"
    if not edit.device:
        return set(texts)
    if own not in texts:
        return {shared}
    return {own, shared} if parse_config(texts[own]) == parse_config(texts[shared]) else {own}


def _apply(message: Any, edit: Edit) -> str:
    """Write the value into `message` and say what changed; an empty string where it was there."""
    holder = _holder(message, edit.field)
    old = _read(holder)
    if holder is None:
        raise RepositoryError(f"The configuration of {edit.folder!r} has no {edit.field}.", "Leave this setting out.")
    if old == edit.value:
        return ""
    try:
        setattr(*holder, str(edit.value) if edit.field.startswith(PARAMETER) else edit.value)
    except (TypeError, ValueError) as error:
        raise RepositoryError(f"{edit.field} of {edit.folder!r} can't be {edit.value!r}.", f"{error}.") from error
    return f"{edit.field} {old} -> {edit.value}"


def rendered(old: str, message: Any, *comments: str) -> str:
    """The text of `message` below the comments that the `old` text begins with, and further ones."""
    head = itertools.takewhile(lambda line: line.startswith("#"), old.splitlines())
    return render_message(message, (*(line.removeprefix("# ") for line in head), *comments))


# Files


def _link(source: Path, target: Path, entry: FileEntry) -> None:
    """Bring one unchanged file: small ones as copies, large ones as hard links where the file system has them."""
    try:
        status = source.lstat()
    except OSError as error:
        raise ModelCorrupt(f"{source} can't be read: {error.strerror}.", "Export the model again.") from error
    if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
        raise _not_as_published(source)
    if entry.size > COPIED_BYTES:
        try:
            return os.link(source, target, follow_symlinks=False)
        except OSError:
            pass  # another file system, another owner's file, or none that knows hard links
    shutil.copyfile(source, target)


def _not_as_published(path: Path) -> ModelCorrupt:
    return ModelCorrupt(f"{path} is not the file that was published.", "Export the model again.")


def _choices(manifest: Manifest, edits: Sequence[Edit], made_by: str, record: Mapping[str, Json]) -> Mapping[str, Json]:
    """The manifest's choices with what was changed, on top of earlier changes."""
    if not edits:
        return manifest.choices
    earlier = manifest.choices.get(RECORD)
    known: Any = earlier.get("settings", {}) if isinstance(earlier, dict) else {}
    settings = {**known, **{f"{edit.folder} {edit.field}": edit.value for edit in edits}}
    return {**manifest.choices, RECORD: {"by": made_by, "at": created_now(), "settings": settings, **record}}
