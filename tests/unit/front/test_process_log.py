"""What the front process writes to stderr: a line for each request, also where stderr can't be written for a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.front.response import AccessLog, Response
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.front_rig import Seen, ask, fronted, post, stderr_file, upstream


@pytest.fixture
def triton() -> Iterator[tuple[int, Seen]]:
    with upstream() as running:
        yield running


def test_the_access_log_has_a_line_for_each_request(triton: tuple[int, Seen], tmp_path: Path) -> None:
    with stderr_file(tmp_path / "log") as log, fronted(triton[0], access_log="text") as front:
        assert ask(front, post(b"{}", X_Request_ID="my-id.1"))[1]["x-request-id"] == "my-id.1"
        generated = ask(front, post(b"{}", "/nowhere?secret=1", X_Request_ID="\"'<b>"))[1]["x-request-id"]
        ask(front, post(b"[" * 70))
        wait_until(lambda: log.read_bytes().count(b"\n") >= 3)
    first, second, third = (line.split(" ") for line in log.read_text().splitlines())
    assert first[1:5] == ["127.0.0.1", "POST", "/v2/models/toy/generate", "200"] and first[-1] == "my-id.1"
    assert second[3:5] == ["/nowhere", "404"] and second[-1] == generated
    assert third[4] == "400"


def test_an_error_after_an_answer_is_printed(
    triton: tuple[int, Seen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("from hfx.front.response import LINES\nLINES['text'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with stderr_file(tmp_path / "log") as log, fronted(triton[0], access_log="text") as front:
        assert ask(front, post(b"{}"))[0] == 200
        wait_until(lambda: b"TypeError" in log.read_bytes())


async def nothing_sent(message: object) -> None:
    """Stand in for the send function of an answer without a client."""


def test_the_access_log_goes_on_after_its_disk_was_full_and_counts_what_it_lost(tmp_path: Path) -> None:
    log, response = AccessLog(lambda scope, response: "a line"), Response(nothing_sent, b"id")
    with stderr_file(Path("/dev/full")):
        for lost in (1, 2):
            log.add({}, response)
            wait_until(lambda lost=lost: log._dropped == lost)  # type: ignore[misc]
    with stderr_file(tmp_path / "log") as file:
        log.add({}, response)
        log.add({}, response)
        wait_until(lambda: file.read_text().endswith("time.\na line\n"))
    assert file.read_text().startswith("a line\n2 lines of")


@pytest.mark.slow
def test_a_front_whose_stderr_is_full_follows_its_key_file(triton: tuple[int, Seen], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-key-of-tests\n")
    with stderr_file(Path("/dev/full")), fronted(triton[0], key_file=str(keys)) as front:
        keys.write_text("short\n")
        time.sleep(3)  # it is read a second after its last change, and refused by a line on stderr
        assert ask(front, post(b"{}", Authorization="Bearer first-key-of-tests"))[0] == 200
        keys.write_text("second-key-of-tests\n")
        wait_until(lambda: ask(front, post(b"{}", Authorization="Bearer second-key-of-tests"))[0] == 200, seconds=20)
