"""hfx's image by the lines of docs/serving.md: it answers, heals, and stops without losing a request."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.containers.containers import Container, answers, running, status
from tests.containers.images import run
from tests.rigs.checkpoints.reciting_generator import ENDLESS
from tests.rigs.clients.generation_requests import Ask
from tests.rigs.files.documents import commands
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import DOORS, STREAMS

pytestmark = pytest.mark.container

[LINE] = commands("docs/serving.md", "docker run")


@pytest.fixture(scope="module")
def container(image: str, folder: Path) -> Iterator[Container]:
    with running(LINE, folder) as served:
        yield served


def test_the_container_answers_at_its_published_ports_and_is_healthy(container: Container) -> None:
    answers(container)
    wait_until(lambda: container.state(".State.Health.Status") == "healthy", "docker's verdict", 30)


def test_a_published_model_is_reloaded_by_the_documented_line(container: Container) -> None:
    container.exec("hfx", "reload", "--repository", "/models")


def test_the_messages_at_the_start_are_those_for_a_container(container: Container) -> None:
    assert "Ready.\n" in container.log and "all that reach this port" in container.log
    assert "Ctrl-C" not in container.log and "this machine" not in container.log


@pytest.mark.parametrize("killed", ["stories_stream_0_0", "stories_0_0", "hfx.front"])
def test_a_killed_process_is_replaced(killed: str, container: Container) -> None:
    said = len(container.log)
    container.kill(killed)
    wait_until(lambda: re.search(r"serving again|starting another", container.log[said:]), killed)
    wait_until(lambda: status(f"{container.http_url}/health") == 200, "health", 10)
    answers(container)


def test_repeated_replacements_of_tritonserver_leave_the_container_healthy(container: Container) -> None:
    began, states = time.monotonic(), set()
    for _ in range(4):
        said = len(container.log)
        container.kill(r"^\S*tritonserver ")
        while "serving again" not in container.log[said:]:
            states.add(container.state(".State.Health.Status"))
            assert time.monotonic() - began < 120, container.log
            time.sleep(0.2)
        answers(container)
        wait_until(lambda: status(f"{container.http_url}/health") == 200, "health", 2)  # looked at every 0.2 s
    assert states == {"healthy"}


def test_a_stop_under_eight_streams_loses_none(container: Container) -> None:
    ask = Ask("stories", "a", {**ENDLESS, "max_tokens": 1000})  # some seconds
    whole, begun = DOORS["HTTP infer"](container, ask).text, threading.Semaphore(0)  # type: ignore[arg-type]

    def read(kind: str) -> str:
        with STREAMS[kind](container, ask) as pieces:  # type: ignore[arg-type]
            return "".join([begun.release() or piece["text_output"] for piece in pieces])

    with ThreadPoolExecutor(8) as pool:
        texts = [pool.submit(read, kind) for kind in [*STREAMS] * 4]
        for _ in range(8 * 3):
            assert begun.acquire(timeout=60)
        run("docker", "stop", container.name)
        assert {text.result() for text in texts} == {whole}
    assert container.exit_code == 0 and "no accepted request was lost" in container.log
