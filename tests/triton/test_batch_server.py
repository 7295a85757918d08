"""Batch jobs through a real server have the rows of a local job, also if the server is killed meanwhile."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from hfx.triton import EmbeddedServer
from tests.rigs.clients.client_servers import Script, grpc_server
from tests.rigs.files.batch_jobs import CommandLine, table, texts
from tests.rigs.machine.tiers import full
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.short_servers import started

pytestmark = pytest.mark.triton
SETTINGS = ("--max-tokens", "16", "--long", "error", "--sample", "--seed", "3")


@pytest.fixture
def batch(writers: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(writers, capsys)


def job(batch: CommandLine, folder: Path, name: str, *words: str | Path, code: int = 0) -> bytes:
    """Return the output of a job."""
    found, text = batch(*batch.new(name, folder, *words, "--column", "text"))
    assert found == code, text
    return (folder / "predictions.csv").read_bytes() if code == 0 else text.encode()


@pytest.mark.parametrize(
    ("name", "settings"),
    [full("stories", SETTINGS), ("sentiment", ()), full("summaries", SETTINGS[:4]), full("notes", SETTINGS)],
)
def test_a_job_on_a_server_writes_the_bytes_of_a_local_job(
    name: str, settings: tuple[str, ...], batch: CommandLine, writing_server: EmbeddedServer, tmp_path: Path
) -> None:
    long = "a garden and a house " * 2000
    cells = ["The garden is lovely.", "", " ", "a\0b", "é\r\n😀", long, 5, None, "[hfx:FAILED] in ensemble 'x', no"]
    source = table(tmp_path / "a.jsonl", [{"text": text} for text in cells])
    expected = job(batch, tmp_path / "here", name, source, *settings)
    for url in (writing_server.grpc_url, writing_server.http_url):
        folder = tmp_path / url.replace("/", "-")
        found = job(batch, folder, name, source, *settings, "--url", url, "--mini-batch-size", "4")
        assert found == expected


@pytest.mark.full
def test_a_server_that_is_killed_during_a_job_loses_no_row(batch: CommandLine, writers: Path, tmp_path: Path) -> None:
    source = texts(tmp_path / "a.csv", 20)
    settings = ("--max-tokens", "24", "--min-tokens", "24", "--sample", "--seed", "3")
    expected = job(batch, tmp_path / "here", "stories", source, *settings)
    folder = tmp_path / "served"
    with started(writers, models=["stories"]) as server:
        words = batch.new("stories", folder, source, *settings, "--url", server.grpc_url, "--mini-batch-size", "2")
        with batch.start(*words, "--max-concurrency", "2") as running:
            for parts in (2, 5):
                wait_until(lambda count=parts: len([*folder.glob("parts/0*")]) >= count, f"{parts} parts")
                if parts == 2:
                    server.kill()  # with all of its processes
                else:
                    [stub] = server.stubs()["stories_stream_0_0"]
                    os.kill(stub, signal.SIGKILL)  # the engine: the server goes on, and refuses all requests
                time.sleep(0.5)
                assert running.poll() is None
                server.restart()
            assert running.wait(120) == 0, running.communicate()[0]
    assert (folder / "predictions.csv").read_bytes() == expected


def test_a_job_is_resumed_once_the_server_is_back(batch: CommandLine, tmp_path: Path) -> None:
    source = table(tmp_path / "a.csv", [{"text": f"sleep 0.1 write {number % 3 + 1}"} for number in range(40)])
    script, folder = Script(model_sha256="a"), tmp_path / "served"
    with ExitStack() as stack:
        url = stack.enter_context(grpc_server(script))
        options = ("--mini-batch-size", "4", "--patience", "1s", "--max-concurrency", "4")
        expected = job(batch, tmp_path / "undisturbed", "writer", source, "--url", url, *options)
        ending = script.when_asked(len(script.texts) + 24, stack.close)  # six of ten parts
        said = job(batch, folder, "writer", source, "--url", url, *options, code=5)
        ending.join()
        assert b"No server has answered for" in said
        assert [*folder.glob("parts/0*")] and not (folder / "predictions.csv").exists()
        code, text = batch("resume", folder)
        assert code == 5 and "can't be reached" in text
        stack.enter_context(grpc_server(script, port=int(url.rpartition(":")[2])))
        batch.done("resume", folder)
    assert (folder / "predictions.csv").read_bytes() == expected
