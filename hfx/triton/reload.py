"""Adding, replacing and removing models of a running server, while all others and the previous version serve.

A server reads the folders of its private copy (models.py), so this module never changes the repository of the user.
Between any two steps, the files on disk are in a state that a restart can load.

An ensemble and its members can't be replaced in one step under their names, because a request could use members of both
versions. The new members are therefore first loaded under other names, and the ensemble is changed to use them (one
atomic step for callers). Then the members are replaced under their own names, which no request uses at that time, and
the ensemble is changed back to these names.
"""

from __future__ import annotations

import compileall
import http.client
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from hfx.errors import ServerError, ServerUnreachable
from hfx.manifest import member_folders, read_manifest
from hfx.metadata import TEMPORARY
from hfx.names import MANIFEST_FILE
from hfx.repository import models
from hfx.repository.catalog import model_folders
from hfx.triton.liveness import call
from hfx.triton.models import check_model, copy_models, is_ensemble, needs, read_settled, select_models
from hfx.triton.one_hop import prepare_encoders

GENERATION_FILE = ".generation"
PUBLICATION_FILE = ".publication"  # by the text of this file, a relay finds its own engine (serving/ipc.py)


class Unsettled(ServerError):
    """The new model serves, but Triton failed in a later step: the server must be started again from its files."""


@dataclass(frozen=True)
class Served:
    """The models that Triton at `http_url` serves from `folder`/repository; each load may take `timeout` seconds.

    `backend`, `native` and `device` determine how encoders are served (one_hop.prepare_encoders).
    """

    folder: Path
    http_url: str
    timeout: float
    backend: str | None = None
    native: bool = False
    device: str = "cpu"

    @property
    def repository(self) -> Path:
        """The folders that Triton reads."""
        return self.folder / "repository"

    def members(self, name: str) -> list[str]:
        """Return the folders of `name` that are served, the entry point last; none if the model is not served.

        For a model without a manifest, these are the needed folders whose names begin with its name.
        """
        if not (self.repository / name).is_dir():
            return []
        text = self.repository / name / MANIFEST_FILE
        if text.exists():
            folders = [folder for folder in read_manifest(text).folders if (self.repository / folder).is_dir()]
        else:
            folders = [each for each in select_models(self.repository, [name]) if each.startswith(f"{name}_")]
        return _entry_last(name, folders)

    def needed(self, name: str) -> list[str]:
        """Return the folders of `name` and of all models that it calls, the entry point last."""
        found: dict[str, None] = {}
        pending = [name]
        while pending:
            folder = pending.pop()
            if folder not in found and (self.repository / folder).is_dir():
                found[folder] = None
                pending += needs(self.repository / folder)
        return [*found][::-1]

    def file_bytes(self, folder: str) -> int:
        """Return the size of the files in `folder` in bytes."""
        return sum(file.stat().st_size for file in (self.repository / folder).rglob("*") if file.is_file())

    def folders(self) -> list[Path]:
        """Return the folders of all models that Triton reads."""
        return model_folders(self.repository)

    def with_members(self, folders: Iterable[str]) -> set[str]:
        """Return `folders` together with all other existing folders of the models that they belong to."""
        found = set(folders)
        for entry in models(self.repository):
            members = {entry.name, *(entry.manifest.folders if entry.manifest else ())}
            found |= members if members & found else set()
        return found & {folder.name for folder in self.folders()}

    def load(self, model: str) -> None:
        """Load `model` from its folder, even if no file in it has changed. Raises ServerError with the reason."""
        # Triton takes a model with a changed file for a new one. Without a change it would keep dead processes; if only
        # config.pbtxt has changed, 2.51 tries to add an instance to them and crashes.
        try:
            (self.repository / model / GENERATION_FILE).write_text(secrets.token_hex(8))
        except OSError as error:
            raise ServerError(
                f"{model} can't be loaded: {error}.", "See the disk of the server's own files."
            ) from error
        self.control(model, "load")

    def unload(self, model: str) -> None:
        """Unload `model`, which ends once its requests are answered, and delete its folder."""
        with suppress(ServerError):  # it was not loaded
            self.control(model, "unload")
        self._delete(model)

    def _delete(self, folder: str) -> None:
        """Delete a folder if it exists, beginning with a rename, because a restart would load what is left of it."""
        removed = self.folder / f"removed-{secrets.token_hex(4)}"
        with suppress(OSError):
            (self.repository / folder).rename(removed)
            shutil.rmtree(removed)

    def control(
        self, model: str, action: Literal["load", "unload"], connection: http.client.HTTPConnection | None = None
    ) -> None:
        """Load or unload `model` through Triton's model control.

        While a model is loaded again, and if that fails, Triton serves it as before. A client that may load models can
        run any code as the server's user, and every local user can read a key in the server's arguments. Control is
        therefore open only if HTTP is at a socket in the server's own folder, which no other user can enter. Raises
        ServerError with Triton's reason, or if the server does not answer for `timeout` seconds, and ServerUnreachable
        if it has ended.
        """
        try:
            url = f"{self.http_url}/v2/repository/models/{quote(model, safe='')}/{action}"
            call(url, b"{}", self.timeout, connection)
        except (OSError, http.client.HTTPException) as error:
            reason = _reason(str(error))
            has_ended = isinstance(error, OSError) and not isinstance(error, TimeoutError)
            kind = ServerUnreachable if has_ended else ServerError
            raise kind(f"Triton did not {action} {model}: {reason}.", "Its log has more.") from error

    def replace(self, source: Path, name: str, is_loaded: bool = True) -> None:
        """Serve `name` as it is now published in the repository `source`, new or in place of the previous model.

        A model that is not loaded is replaced only on disk.

        Raises ModelMissing, ModelCorrupt, or ServerError with Triton's reason; the previous model then remains in
        service. Raises Unsettled if the new model serves, but the server must be started again.
        """
        incoming = self.folder / "incoming"
        outgoing = self.folder / "outgoing"
        try:
            self._restore(outgoing)
            before = self.members(name)
            copied = _copy(source, name, incoming)
            prepare_encoders(incoming, self.backend, self.native, self.repository, self.device)
            folders = [folder for folder in copied if (incoming / folder).is_dir()]
            publication = secrets.token_hex(8)
            for folder in folders:
                (incoming / folder / PUBLICATION_FILE).write_text(publication)
            outgoing.mkdir(exist_ok=True)
            if not is_loaded:
                for folder in folders:
                    self._replace_folder(folder, incoming / folder, outgoing)
            elif before and is_ensemble(incoming / name):
                self._replace_ensemble(name, folders, incoming, outgoing)
            else:
                self._replace_models(folders, incoming, outgoing)
            for folder in set(before) - set(folders):
                self.unload(folder)
        except OSError as error:
            fix = "The version before is served. See the disk of the server's own files."
            raise ServerError(f"{name} can't be replaced: {error}.", fix) from error
        finally:
            with suppress(OSError):  # then the next call does it
                self._restore(outgoing)
            with suppress(OSError):  # which `ignore_errors` of Python 3.11 raises for the folder itself
                shutil.rmtree(incoming, ignore_errors=True)

    def _restore(self, outgoing: Path) -> None:
        """Move the folders back that a replacement has left in `outgoing` and not replaced, and delete the others."""
        for folder in outgoing.iterdir() if outgoing.is_dir() else ():
            if not (self.repository / folder.name).is_dir():
                folder.rename(self.repository / folder.name)
        if outgoing.is_dir():
            shutil.rmtree(outgoing)

    def _replace_models(self, folders: list[str], incoming: Path, outgoing: Path) -> None:
        """Replace and load each of `folders`.

        If one does not load, undo all replacements, and load the previous versions of the ones before it again.
        """
        done: list[str] = []
        try:
            for folder in folders:
                done.append(folder)
                self._replace_folder(folder, incoming / folder, outgoing)
                self.load(folder)
        except BaseException:
            for folder in done:
                if (outgoing / folder).is_dir():
                    self._put_back(folder, incoming, outgoing)
                    if folder != done[-1]:  # the last one still serves as it was
                        self.load(folder)
                else:
                    self.unload(folder)
            raise

    def _replace_ensemble(self, name: str, folders: list[str], incoming: Path, outgoing: Path) -> None:
        members = {folder: _temporary(name, folder) for folder in folders if folder != name}
        try:
            for member, temporary in members.items():
                self._delete(temporary)  # left by a replacement that did not settle
                _renamed_copy(incoming / member, incoming / temporary, members)
                (incoming / temporary).rename(self.repository / temporary)
                self.load(temporary)
            _renamed_copy(incoming / name, incoming / _temporary(name, name), members)
            self._replace_folder(name, incoming / _temporary(name, name), outgoing)
            self.load(name)
        except BaseException:
            if (outgoing / name).is_dir():
                self._put_back(name, incoming, outgoing)
            for temporary in members.values():
                self.unload(temporary)
            raise
        self._settle(name, members, incoming, outgoing)

    def _settle(self, name: str, members: Mapping[str, str], incoming: Path, outgoing: Path) -> None:
        """Switch from the temporary members of the new ensemble to members under their own names.

        No request uses the members under their own names at this time.
        """
        failure = None
        try:
            if (outgoing / name).is_dir():
                (outgoing / name).rename(incoming / f"{name}.before")
            for member in members:
                with suppress(ServerError):  # frees its memory before the new member is loaded
                    self.control(member, "unload")
                self._replace_folder(member, incoming / member, outgoing)
            self._replace_folder(name, incoming / name, outgoing)
        except OSError as error:  # a restart loads the temporary members
            raise Unsettled(f"its files can't be moved: {error}") from error
        try:
            for folder in (*members, name):
                self.load(folder)
        except ServerError as error:
            failure = error
        if failure:  # the temporary members serve until the restart, which must not load them
            for temporary in members.values():
                self._delete(temporary)
            raise Unsettled(failure.message, failure.fix) from failure
        for temporary in members.values():
            self.unload(temporary)

    def _put_back(self, folder: str, incoming: Path, outgoing: Path) -> None:
        """Undo `_replace_folder`. No folder is deleted in the repository, as a part of it would be loaded."""
        if (self.repository / folder).is_dir():
            (self.repository / folder).rename(incoming / f"{folder}.undone")
        (outgoing / folder).rename(self.repository / folder)

    def _replace_folder(self, folder: str, new: Path, outgoing: Path) -> None:
        if (self.repository / folder).is_dir():
            (self.repository / folder).rename(outgoing / folder)
        new.rename(self.repository / folder)


def _copy(source: Path, name: str, target: Path) -> list[str]:
    """Copy `name` with its members, all of one publication and as published, to the new folder `target`.

    Returns the folders, the entry point last. Raises ModelMissing or ModelCorrupt.
    """

    def copy() -> list[str]:
        shutil.rmtree(target, ignore_errors=True)
        folders = select_models(source, [name])
        if (source / name / MANIFEST_FILE).exists():
            check_model(read_manifest(source / name / MANIFEST_FILE), source)
        copy_models(source, folders, target)
        return folders

    folders = read_settled(copy, lambda: (source / each for each in member_folders(name)))
    # Otherwise the model's process would compile the files, so that Triton would see a changed folder, and load the
    # model again with its ensemble.
    compileall.compile_dir(target, quiet=2)
    return _entry_last(name, folders)


def manifest_text(repository: Path, name: str) -> bytes:
    """Return the text of the manifest of `name`; empty if there is none."""
    try:
        return (repository / name / MANIFEST_FILE).read_bytes()
    except OSError:
        return b""


def _entry_last(name: str, folders: Iterable[str]) -> list[str]:
    return [*(folder for folder in folders if folder != name), name]


def _reason(text: str) -> str:
    """Return the message in the JSON of Triton's refusal."""
    _, brace, rest = text.partition("{")
    try:
        words = str(json.loads(brace + rest)["error"])
    except (ValueError, LookupError, TypeError):
        words = text
    return words.strip().rstrip(".")


def _temporary(name: str, folder: str) -> str:
    """Return another name for `folder`, a member of `name`, with the same ending. No model can have this name."""
    return name + TEMPORARY + folder.removeprefix(name)


def _renamed_copy(source: Path, target: Path, names: Mapping[str, str]) -> None:
    """Copy the model folder `source` to `target` with hard links.

    Its configurations get new model names (old -> new).
    """
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    for path in target.rglob("*.pbtxt"):
        text = path.read_text("utf-8")
        for old, new in names.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        path.unlink()
        path.write_text(text, "utf-8")
