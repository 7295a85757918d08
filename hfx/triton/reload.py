"""Models of a running server are added, replaced and taken out, while all others and the one before serve.

The folders that a server reads are its private copy (models.py), so what happens here never touches the repository of
the user. Every state on disk between two steps is one that a restart can load.

An ensemble and its members can't be replaced in one step under their names: a request would meet members of both. So
the new members are loaded under other names first, the ensemble is pointed at them (one atomic step for callers), the
members are replaced under their own names, which no request uses then, and the ensemble is pointed back at those.
"""

from __future__ import annotations

import compileall
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import HfxError, ModelCorrupt, ServerError
from hfx.manifest import read_manifest, verify_files
from hfx.metadata import TEMPORARY
from hfx.names import MANIFEST_FILE
from hfx.repository import models, parse_config
from hfx.repository.catalog import model_folders
from hfx.triton import control
from hfx.triton.encoder_nets import use_backend
from hfx.triton.models import CONFIG_FILE, copy_models, select_models

GENERATION_FILE = ".generation"
PUBLICATION_FILE = ".publication"  # by which a relay finds the engine that came with it (serving/ipc.py)
COPIES = 3  # of a model that is published anew while it is copied


class Unsettled(ServerError):
    """The new model serves, but Triton did not follow to the end: the server must be started again from its files."""


@dataclass(frozen=True)
class Served:
    """The models that Triton at `http_url` serves from `folder`/repository; each load may take `timeout` seconds.

    `backend`: that of encoders' nets where it is hfx's (encoder_nets.py).
    """

    folder: Path
    http_url: str
    timeout: float
    backend: str | None = None

    @property
    def repository(self) -> Path:
        """The folders that Triton reads."""
        return self.folder / "repository"

    def members(self, name: str) -> list[str]:
        """The folders of `name` that are served, the entry point last; none when it is not served.

        Of a model without a manifest they are those that its name begins.
        """
        if not (self.repository / name).is_dir():
            return []
        text = self.repository / name / MANIFEST_FILE
        if text.exists():
            folders = [folder for folder in read_manifest(text).folders if (self.repository / folder).is_dir()]
        else:
            folders = [each for each in select_models(self.repository, [name]) if each.startswith(f"{name}_")]
        return _entry_last(name, folders)

    def folders(self) -> list[Path]:
        """The folders of all models."""
        return model_folders(self.repository)

    def with_members(self, folders: Iterable[str]) -> set[str]:
        """`folders` with all others of the models that they belong to, those that are there."""
        found = set(folders)
        for entry in models(self.repository):
            members = {entry.name, *(entry.manifest.folders if entry.manifest else ())}
            found |= members if members & found else set()
        return found & {folder.name for folder in self.folders()}

    def load(self, model: str) -> None:
        """Load `model` from its folder, also when no file of it has changed. Raises ServerError with the reason."""
        # Triton takes a model with a changed file for a new one. Without, it would keep dead processes; with only
        # config.pbtxt changed, 2.51 tries to add an instance to them and crashes.
        (self.repository / model / GENERATION_FILE).write_text(secrets.token_hex(8))
        control.load(self.http_url, model, self.timeout)

    def unload(self, model: str) -> None:
        """Unload `model`, which ends when its requests are answered, and delete its folder."""
        with suppress(ServerError):  # it was not loaded
            control.unload(self.http_url, model, self.timeout)
        shutil.rmtree(self.repository / model, ignore_errors=True)

    def replace(self, source: Path, name: str) -> None:
        """Serve `name` as it is published in the repository `source` now, new or in place of the one before.

        Raises ModelMissing, ModelCorrupt, or ServerError with Triton's reason; the one before serves on then. Raises
        Unsettled when the new one serves and the server is to be started again.
        """
        incoming = self.folder / "incoming"
        outgoing = self.folder / "outgoing"
        before = self.members(name)
        try:
            folders = self._copy(source, name, incoming)
            publication = secrets.token_hex(8)
            for folder in folders:
                (incoming / folder / PUBLICATION_FILE).write_text(publication)
            outgoing.mkdir()
            if before and _is_ensemble(incoming / name):
                self._replace_ensemble(name, folders, incoming, outgoing)
            else:
                self._replace_models(folders, incoming, outgoing)
            for folder in set(before) - set(folders):
                self.unload(folder)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
            shutil.rmtree(outgoing, ignore_errors=True)

    def _copy(self, source: Path, name: str, target: Path) -> list[str]:
        """As `_copy`, for the backends of this server."""
        folders = _copy(source, name, target)
        if self.backend:
            use_backend(target, self.backend)
        return [folder for folder in folders if (target / folder).is_dir()]

    def _replace_models(self, folders: list[str], incoming: Path, outgoing: Path) -> None:
        """Load each of `folders` anew; when one does not load, those before it as they were."""
        done: list[str] = []
        try:
            for folder in folders:
                done.append(folder)
                self._replace_folder(folder, incoming / folder, outgoing)
                self.load(folder)
        except BaseException:
            for folder in done:
                if (outgoing / folder).is_dir():
                    shutil.rmtree(self.repository / folder, ignore_errors=True)
                    (outgoing / folder).rename(self.repository / folder)
                    if folder != done[-1]:  # the last one still serves as it was
                        self.load(folder)
                else:
                    self.unload(folder)
            raise

    def _replace_ensemble(self, name: str, folders: list[str], incoming: Path, outgoing: Path) -> None:
        members = {folder: _temporary(name, folder) for folder in folders if folder != name}
        try:
            for member, temporary in members.items():
                _renamed_copy(incoming / member, self.repository / temporary, members)
                self.load(temporary)
            _renamed_copy(incoming / name, incoming / _temporary(name, name), members)
            self._replace_folder(name, incoming / _temporary(name, name), outgoing)
            self.load(name)
        except BaseException:
            if (outgoing / name).is_dir():
                shutil.rmtree(self.repository / name, ignore_errors=True)
                (outgoing / name).rename(self.repository / name)
            for temporary in members.values():
                self.unload(temporary)
            raise
        self._settle(name, members, incoming, outgoing)

    def _settle(self, name: str, members: Mapping[str, str], incoming: Path, outgoing: Path) -> None:
        """From the temporary members of the new ensemble to those of its own names, which no request uses any more."""
        shutil.rmtree(outgoing / name)
        failure = None
        for member in members:
            with suppress(ServerError):  # the memory of the one before is free before the new one is loaded
                control.unload(self.http_url, member, self.timeout)
            self._replace_folder(member, incoming / member, outgoing)
        self._replace_folder(name, incoming / name, outgoing)
        try:
            for folder in (*members, name):
                self.load(folder)
        except ServerError as error:
            failure = error
        for temporary in members.values():
            self.unload(temporary)
        if failure:
            raise Unsettled(failure.message, failure.fix) from failure

    def _replace_folder(self, folder: str, new: Path, outgoing: Path) -> None:
        if (self.repository / folder).is_dir():
            (self.repository / folder).rename(outgoing / folder)
        new.rename(self.repository / folder)


def _copy(source: Path, name: str, target: Path) -> list[str]:
    """Copy `name` with its members to the new folder `target`: all of one publication, and as it was published.

    Returns the folders, the entry point last. Raises ModelMissing or ModelCorrupt.
    """
    for _ in range(COPIES):
        shutil.rmtree(target, ignore_errors=True)
        text = manifest_text(source, name)
        try:
            folders = select_models(source, [name])
            if text:
                problems = verify_files(read_manifest(source / name / MANIFEST_FILE), source)
                if problems:
                    raise ModelCorrupt(
                        f"The model {name!r} is not as it was published:\n"
                        + "\n".join(problem.message for problem in problems),
                        "Export it again with --force.",
                    )
            copy_models(source, folders, target)
            # Otherwise its process does so, Triton sees a changed folder, and loads it again with its ensemble.
            compileall.compile_dir(target, quiet=2)
        except (HfxError, OSError):
            if manifest_text(source, name) == text:
                raise
        else:
            if manifest_text(target, name) == manifest_text(source, name) == text:
                return _entry_last(name, folders)
    raise ServerError(f"{name} was published anew {COPIES} times while it was read.", "Try again.")


def manifest_text(repository: Path, name: str) -> bytes:
    """The text of the manifest of `name`; empty where there is none."""
    try:
        return (repository / name / MANIFEST_FILE).read_bytes()
    except OSError:
        return b""


def _entry_last(name: str, folders: Iterable[str]) -> list[str]:
    return [*(folder for folder in folders if folder != name), name]


def _is_ensemble(folder: Path) -> bool:
    config = parse_config((folder / CONFIG_FILE).read_text("utf-8", "replace"))
    return bool(config.ensemble_scheduling.step)


def _temporary(name: str, folder: str) -> str:
    """Another name for `folder`, a member of `name`, that ends alike; no model can have it."""
    return name + TEMPORARY + folder.removeprefix(name)


def _renamed_copy(source: Path, target: Path, names: Mapping[str, str]) -> None:
    """Make `target` a copy of the model folder `source` without space of its own, with other names of models."""
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    for path in target.rglob("*.pbtxt"):
        text = path.read_text("utf-8")
        for old, new in names.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        path.unlink()
        path.write_text(text, "utf-8")
