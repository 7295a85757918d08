"""Changing settings of a published model. Only its configurations and its manifest are changed.

A change in place is a publication like any other (publish), so that a crash leaves either the old model or the new
model. Large files are hard-linked, because published files are replaced, never written to.
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

COPIED_BYTES = 1 << 20  # up to this size, copying costs next to nothing; larger files are linked
RECORD = "tuned"  # in the manifest's choices
FIELDS = ("instances", "max_batch_size", "max_queue_delay_microseconds", "default_model_filename")
PARAMETER = "parameters."
Value = int | str


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of `field` to `value` in the configuration of the model folder `folder`.

    `field` is one of FIELDS, or `parameters.KEY` for a key that exists. `device` limits the change to
    configs/DEVICE.pbtxt, and to config.pbtxt if its configuration is equal. Without `device`, every configuration of
    the folder is changed.
    """

    folder: str
    field: str
    value: Value
    device: str = ""


def value(repository: Path, folder: str, field: str, device: str = "") -> Value | None:
    """Return the value that the configuration of `folder` has now; None if it has no such field, or is absent."""
    path = config_path(repository / folder, device)
    return _read(_holder(parse_config(read_text(path, MAX_CONFIG_BYTES)), field)) if path.is_file() else None


def changed_copy(
    repository: Path, name: str, edits: Sequence[Edit], target: Path, made_by: str, record: Mapping[str, Json] = {}
) -> Manifest:
    """Copy NAME with its members into the folder `target`, a repository of its own, and apply `edits` to the copy.

    The copy is not linted. Raises ModelMissing, ModelCorrupt for files that differ from the manifest, and
    RepositoryError for a field that a configuration does not have or a value that it can't take.
    """
    manifest = model(repository, check_name(name))
    changed = _changed_texts(repository, manifest, edits, made_by)
    files = dict(manifest.files)
    with storage(target):
        for folder in manifest.folders:
            (target / folder).mkdir(parents=True)  # must be new, as old files could be links to published files
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

    `made_by` is the command as the configurations' comments name it, without paths; `record` is stored in the manifest
    beside the changes. If every value is already set, nothing happens. Raises the errors of changed_copy, and
    LintFailed.
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
    """Yield a folder for changed copies of NAME, on the repository's file system, so that links take no space.

    The folder is deleted at the end of the block, and by recover() after a crash. If the repository can't be written
    to, the folder is created among the temporary files of the system.
    """
    if os.access(repository, os.W_OK):
        with Staging(repository, name) as staging:
            yield staging.path
    else:
        with TemporaryDirectory(prefix="hfx-") as folder:
            yield Path(folder)


# Fields


def _holder(message: Any, field: str) -> tuple[Any, str] | None:
    """Return the protobuf message and its attribute that hold `field`; None if the configuration has no such field.

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
    """Return the value of a field. A parameter, which is always a string, becomes an int if it has up to 9 digits."""
    if holder is None:
        return None
    current: Value = getattr(*holder)
    return int(current) if isinstance(current, str) and re.fullmatch("[0-9]{1,9}", current) else current


# Configurations


def _changed_texts(repository: Path, manifest: Manifest, edits: Sequence[Edit], made_by: str) -> dict[str, str]:
    """Return the new text of every configuration that changes, by its path in the manifest."""
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
    """Return the texts of a folder's configurations. Raises ModelCorrupt if they differ from the manifest."""
    texts = {}
    for path, entry in manifest.files.items():
        if path == f"{folder}/{CONFIG}" or path.startswith(f"{folder}/{VARIANTS}/"):
            texts[path] = read_text(repository / path, MAX_CONFIG_BYTES)
            if hash_file(repository / path) != entry:
                raise _not_as_published(repository / path)
    return texts


def _paths(texts: Mapping[str, str], edit: Edit) -> set[str]:
    """Return the paths in `texts`, the configurations of a folder, that an edit changes."""
    own, shared = f"{edit.folder}/{VARIANTS}/{edit.device}.pbtxt", f"{edit.folder}/{CONFIG}"
    if not edit.device:
        return set(texts)
    if own not in texts:
        return {shared}
    return {own, shared} if parse_config(texts[own]) == parse_config(texts[shared]) else {own}


def _apply(message: Any, edit: Edit) -> str:
    """Write the value into `message`, and return a description of the change, which is empty if there was none."""
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
    """Return the text of `message` below the comments at the beginning of the `old` text, and further `comments`."""
    head = itertools.takewhile(lambda line: line.startswith("#"), old.splitlines())
    return render_message(message, (*(line.removeprefix("# ") for line in head), *comments))


# Files


def _link(source: Path, target: Path, entry: FileEntry) -> None:
    """Copy one unchanged file if it is small, and otherwise hard-link it if the file system supports that."""
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
            pass  # another file system, another owner's file, or no support for hard links
    shutil.copyfile(source, target)


def _not_as_published(path: Path) -> ModelCorrupt:
    return ModelCorrupt(f"{path} is not the file that was published.", "Export the model again.")


def _choices(manifest: Manifest, edits: Sequence[Edit], made_by: str, record: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the manifest's choices with a record of these changes added to that of earlier changes."""
    if not edits:
        return manifest.choices
    earlier = manifest.choices.get(RECORD)
    known: Any = earlier.get("settings", {}) if isinstance(earlier, dict) else {}
    settings = {**known, **{f"{edit.folder} {edit.field}": edit.value for edit in edits}}
    return {**manifest.choices, RECORD: {"by": made_by, "at": created_now(), "settings": settings, **record}}
