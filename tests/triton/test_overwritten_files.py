"""Served files that another program overwrites in place, as `cp`, `rsync --inplace` and editors do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from hfx.errors import ModelCorrupt, ServerError
from hfx.triton.models import check_published, copy_models, read_settled
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.tiers import full
from tests.rigs.servers.serve_process import infer, post, serving
from tests.rigs.servers.short_servers import started

pytestmark = pytest.mark.triton

TEXT = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a lovely garden"]}]}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that is served as one native model, and a generator."""
    folder = tmp_path_factory.mktemp("repository")
    export_zoo("sentiment-distilbert", folder, "sentiment", "int8", "onnxruntime")
    export_zoo("stories-gpt2", folder, "stories", "fp32", "onnxruntime", slots=8)
    return folder


@pytest.fixture
def repository(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "repository"))


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def fill(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"\xff" * size)


def answers(url: str) -> tuple[str, str]:
    status, answer = post(f"{url}/v2/models/stories/generate", {"text_input": "Once upon a time", "max_tokens": 8})
    assert status == 200, answer
    return infer(url, "sentiment", "a lovely garden"), answer["text_output"]


@pytest.mark.parametrize("overwrite", [truncate, full(fill)])
def test_all_answers_stay_the_same_also_after_a_restart(repository: Path, overwrite: Callable[[Path], None]) -> None:
    with serving(repository) as served:
        before, server = answers(served.http_url), served.server
        failures: list[str] = []
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                try:
                    if answers(served.http_url) != before:
                        failures.append("another answer")
                except (AssertionError, OSError) as error:
                    failures.append(repr(error))

        callers = [threading.Thread(target=ask) for _ in range(2)]
        for caller in callers:
            caller.start()
        for path in repository.rglob("*"):
            if path.is_file() and path.stat().st_size:
                overwrite(path)
        time.sleep(1)  # for requests after it
        ended.set()
        for caller in callers:
            caller.join()
        assert failures == []
        assert served.server == server
        os.kill(server, signal.SIGKILL)
        served.wait_for_words("serving again after")
        assert answers(served.http_url) == before


def test_a_start_beside_files_that_are_being_written_waits_until_they_are_complete(repository: Path) -> None:
    weights = next(repository.glob("sentiment_net/1/*.data"))
    content = weights.read_bytes()
    truncate(weights)

    def write() -> None:
        with weights.open("r+b") as file:
            for start in range(0, len(content), -(-len(content) // 8)):
                file.write(content[start : start + -(-len(content) // 8)])
                file.flush()
                time.sleep(0.2)

    writer = threading.Thread(target=write)
    writer.start()
    with serving(repository, "--models", "sentiment") as served:
        writer.join()
        assert infer(served.http_url, "sentiment", "a lovely garden")
        assert "not as it was published" not in served.words


def test_files_that_change_between_the_check_and_the_copy_are_read_again(repository: Path, tmp_path: Path) -> None:
    calls = 0
    weights = next(repository.glob("sentiment_net/1/*.data"))

    def read() -> int:
        nonlocal calls
        calls += 1
        check_published(repository, ["sentiment"], lambda line: None)
        if calls == 1:
            fill(weights)  # after the check
        copy_models(repository, ["sentiment_net"], tmp_path / f"copy-{calls}")
        return calls

    with pytest.raises(ModelCorrupt, match="SHA-256 differs"):
        read_settled(read, lambda: [repository / "sentiment_net"])
    assert calls == 2


def test_a_copy_without_room_is_refused_before_it_fills_the_disk(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = next(repository.glob("sentiment_net/1/*.data"))
    free = weights.stat().st_size - 1
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(ServerError, match="0 MiB free") as caught:
        copy_models(repository, ["sentiment_net"], tmp_path / "copy")
    assert "TMPDIR" in caught.value.fix


def test_the_copy_of_a_server_shares_no_file_with_the_repository(repository: Path) -> None:
    published = {(path.stat().st_dev, path.stat().st_ino) for path in repository.rglob("*")}
    with started(repository) as server:
        served = [path.stat() for path in (server.folder / "repository").rglob("*")]
    assert not published & {(each.st_dev, each.st_ino) for each in served}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_large_files_of_a_read_only_file_system_are_linked(tmp_path: Path) -> None:
    """The files of an image are on such a file system, while its /tmp is in memory; they are served in place."""
    folder = tmp_path / "repository"
    folder.mkdir()
    run = partial(subprocess.run, check=True, capture_output=True)
    try:
        run(["mount", "-t", "tmpfs", "none", folder])
    except subprocess.CalledProcessError:
        pytest.skip("no file system can be mounted here")
    try:
        export_zoo("similar-mpnet", folder, "similar", "fp32", "onnxruntime")
        run(["mount", "-o", "remount,ro", folder])
        with started(folder) as server:
            links = [path for path in (server.folder / "repository").rglob("*") if path.is_symlink()]
            assert links
            assert post(f"{server.http_url}/v2/models/similar/infer", TEXT)[0] == 200
    finally:
        run(["umount", folder])
