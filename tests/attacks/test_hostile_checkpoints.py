"""Folders that are not checkpoints: missing, linked to elsewhere, or on a hub that does not answer."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointMissing, CheckpointUnsafe
from hfx.exporter.source import open_checkpoint
from tests.attacks.damage import load, refused

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASK = """
import sys
from hfx.errors import HfxError
from hfx.exporter.source import open_checkpoint
for model in sys.argv[1:]:
    try:
        print(open_checkpoint(model).revision)
    except HfxError as error:
        print(type(error).__name__, error.exit_code, error.message, error.fix)
"""
# Last part of the requested id -> status and error code of the hub's answer.
ANSWERS = {
    "gone": (404, "RepoNotFound"),
    "private": (401, "RepoNotFound"),
    "gated": (403, "GatedRepo"),
    "unborn": (404, "RevisionNotFound"),
    "broken": (500, ""),
    "busy": (429, ""),
    "garbled": (200, ""),
}


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub without a model, which fails in seven ways."""

    def do_GET(self) -> None:
        status, code = next((a for name, a in ANSWERS.items() if f"/{name}/" in self.path), (404, "RepoNotFound"))
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub_answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    lines = ask(tmp_path_factory.mktemp("home"), *(f"org/{name}" for name in ANSWERS), HF_ENDPOINT=endpoint)
    yield dict(zip(ANSWERS, lines, strict=True))
    server.shutdown()


def ask(home: Path, *models: str, **environment: str) -> list[str]:
    """Return the result for each model in a fresh process, as huggingface_hub reads its settings only at import."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {"HF_HOME": str(home)} | environment
    command = [sys.executable, "-c", ASK, *models]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def cached(home: Path, checkpoint: Path) -> Path:
    """Write `checkpoint` as the hub's cache holds org/tiny, as links to blobs, and return the snapshot's folder."""
    repository = home / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / COMMIT
    shutil.copytree(checkpoint, repository / "blobs")
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for blob in (repository / "blobs").iterdir():
        (snapshot / blob.name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot


@pytest.mark.parametrize(
    "model", ["/nowhere/model", "./nowhere", "../nowhere", "a/b/c", "C:\\models\\bert", "~nobody-here/x"]
)
def test_a_missing_folder_is_named(model: str) -> None:
    refused(CheckpointMissing, model, lambda: open_checkpoint(model))


@pytest.mark.parametrize(
    "model", ["", " ", "x" * 5000, "a\0b", "a b", "org/", "/" * 5000 + "x", "-", "org/..", "é/ü", "a\nb"]
)
def test_a_name_that_cannot_be_a_model_is_refused(model: str) -> None:
    refused(CheckpointMissing, "", lambda: open_checkpoint(model))


def test_a_file_in_the_place_of_a_folder_is_refused(folder: Path) -> None:
    refused(CheckpointMissing, "is a file", lambda: open_checkpoint(str(folder / "config.json")))


def test_an_empty_folder_and_a_revision_of_a_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(CheckpointCorrupt, tmp_path / "empty", lambda: open_checkpoint(str(tmp_path / "empty")))
    refused(CheckpointMissing, "v1", lambda: open_checkpoint(str(folder), revision="v1"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "README.md", "1_Pooling"])
def test_a_link_that_leaves_the_folder_is_unsafe(folder: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    if (folder / name).exists():
        (folder / name).rename(outside)
    else:
        outside.mkdir()
    (folder / name).symlink_to(outside)
    refused(CheckpointUnsafe, folder / name, lambda: open_checkpoint(str(folder)))


@pytest.mark.parametrize(
    "target", ["../../../../../../../../etc/passwd", "/etc", "/proc/self/environ", "/nowhere", "chain", "a.link"]
)
def test_a_link_to_the_system_or_to_itself_is_unsafe(folder: Path, tmp_path: Path, target: str) -> None:
    (folder / "a.link").symlink_to(target)
    if target == "chain":
        (folder / "chain").symlink_to(tmp_path)
    refused(CheckpointUnsafe, folder / "a.link", lambda: open_checkpoint(str(folder)))


def test_links_to_the_folder_and_inside_it_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    (tmp_path / "link").symlink_to(folder)
    load(tmp_path / "link")


def test_a_changed_byte_changes_the_hash(folder: Path) -> None:
    before = open_checkpoint(str(folder)).sha256()
    with (folder / "tokenizer_config.json").open("a") as stream:
        stream.write(" ")
    assert open_checkpoint(str(folder)).sha256() != before


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}], ids=str)
def test_a_hub_that_is_off_or_not_there_tells_how_to_pass_a_folder(tmp_path: Path, environment: dict[str, str]) -> None:
    (line,) = ask(tmp_path, "org/tiny", **environment)
    assert line.startswith("CheckpointMissing 3 ")
    assert "folder" in line


CANT_BE_REACHED = "The hub can't be reached for '{}', and no copy is in the local cache"
SAID = {
    "gone": "'{}' is neither a folder here nor a model",
    "private": "'{}' is neither a folder here nor a model",
    "gated": "'{0}' is on the hub, but its owner must let you in. Accept its terms at https://huggingface.co/{0}",
    "unborn": "'{}' has no revision",
    **dict.fromkeys(("broken", "busy", "garbled"), CANT_BE_REACHED),
}


@pytest.mark.parametrize(("name", "said"), SAID.items())
def test_each_refusal_of_the_hub_has_its_own_message(hub_answers: dict[str, str], name: str, said: str) -> None:
    assert hub_answers[name].startswith("CheckpointMissing 3 " + said.format(f"org/{name}"))
    assert said != CANT_BE_REACHED or "pass its folder" in hub_answers[name]


def test_a_model_in_the_cache_opens_without_a_hub_and_as_a_folder(pristine: Path, tmp_path: Path) -> None:
    snapshot = cached(tmp_path, pristine)
    assert ask(tmp_path, "org/tiny", HF_HUB_OFFLINE="1") == [COMMIT]
    load(snapshot)


def test_a_link_that_leaves_the_cache_is_unsafe(pristine: Path, tmp_path: Path) -> None:
    snapshot = cached(tmp_path, pristine)
    (snapshot / "more.json").symlink_to("/etc/passwd")
    (line,) = ask(tmp_path, "org/tiny", HF_HUB_OFFLINE="1")
    assert line.startswith(f"CheckpointUnsafe 3 {snapshot / 'more.json'}")
