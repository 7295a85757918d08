"""The servers that commands find on this machine, and the models of a repository that may be served."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hfx.errors import ModelCorrupt
from hfx.names import MANIFEST_FILE
from hfx.triton import commands
from hfx.triton.commands import SOCKET, files_of, servers_of
from hfx.triton.models import damaged_models
from hfx.triton.workspace import PREFIX
from tests.rigs.files.manifests import fill

STOPPED = 6


@pytest.fixture
def stopped_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sockets that take connections and never answer, as processes that a signal has stopped."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ExitStack() as stack:
        for number in range(STOPPED):
            (tmp_path / f"{PREFIX}{number}").mkdir()
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(tmp_path / f"{PREFIX}{number}" / SOCKET))
            listener.listen()
        yield


@pytest.mark.usefixtures("stopped_servers")
def test_servers_that_are_stopped_are_waited_for_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "STATUS_SECONDS", 1.0)
    began = time.monotonic()
    assert servers_of(tmp_path) == []
    assert time.monotonic() - began < STOPPED / 2


def test_a_repository_whose_only_model_is_damaged_is_refused_with_its_members(tmp_path: Path) -> None:
    fill(tmp_path, "sentiment")
    (tmp_path / "sentiment" / MANIFEST_FILE).write_text("{")
    with pytest.raises(ModelCorrupt, match="'sentiment'"):
        damaged_models(tmp_path, print)


def test_the_members_of_a_damaged_model_are_left_out_with_it(tmp_path: Path) -> None:
    said: list[str] = []
    for name in ("sentiment", "other"):
        fill(tmp_path, name)
    damaged = tmp_path / "sentiment" / MANIFEST_FILE
    damaged.write_text("{")
    with pytest.raises(ModelCorrupt, match="sentiment"):  # which may still be written
        damaged_models(tmp_path, said.append)
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    left_out = damaged_models(tmp_path, said.append)
    assert "sentiment" in left_out and all(name.startswith("sentiment") for name in left_out)
    assert [line.splitlines()[-1] for line in said] == ["The other models are served."]


def test_a_file_that_is_still_written_changes_what_is_seen_of_its_model(tmp_path: Path) -> None:
    fill(tmp_path, "sentiment")
    before = files_of(tmp_path, "sentiment")
    assert before == files_of(tmp_path, "sentiment")
    with (tmp_path / "sentiment" / MANIFEST_FILE).open("ab") as file:
        file.write(b" ")
    assert files_of(tmp_path, "sentiment") != before
