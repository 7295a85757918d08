"""One model of a running server is replaced while the others serve."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.errors import HfxError, ServerError
from hfx.triton import EmbeddedServer, process, recovery, supervisor
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import left_behind
from tests.rigs.servers.toy_models import write_flaky, write_ticks, write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(write_toy(tmp_path / "repository"), "other")


class Supervised:
    """A private server that a thread keeps serving; `lines` are its reports, `faults` its verdicts in order."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.lines: list[str] = []
        self.faults = [""]
        self.pid = server.pid
        # No restart of the whole server is expected, which would need the main thread.
        threading.Thread(target=self._keep_serving, daemon=True).start()

    def _keep_serving(self) -> None:
        with suppress(ServerError):  # once the server has been stopped
            supervisor.keep_serving(self.server, self.lines.append, self._note)

    def _note(self, fault: str, restarts: int) -> None:
        self.restarts = restarts
        if fault != self.faults[-1]:
            self.faults.append(fault)

    def kill(self, instance: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.server.stubs()[instance][-1], number)

    def wait_for_line(self, words: str, count: int = 1) -> None:
        wait_until(lambda: sum(words in line for line in self.lines) >= count, words)


@contextmanager
def supervised(repository: Path) -> Iterator[Supervised]:
    with EmbeddedServer(repository, private=True, exit_timeout=60) as server:
        served = Supervised(server)
        try:
            yield served
        finally:  # pytest shows it beside a failure
            print(*served.lines, served.faults, server.log.read_text()[-5000:], sep="\n")
            server.kill()


class Callers:
    """Threads that call `model` until `end`; they count answers and keep failures."""

    def __init__(self, server: EmbeddedServer, model: str, count: int = 2) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._url, self._model = server.grpc_url, model
        self._threads = [threading.Thread(target=self._call) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _call(self) -> None:
        with Client(self._url, retries=0) as client:
            while not self._ended.is_set():
                try:
                    assert client.classify(self._model, "four").label == "4 characters"
                except HfxError as error:
                    self.failures.append(str(error))
                else:
                    self.answers += 1

    def wait_for_answers(self, more: int = 20) -> None:
        """Wait for `more` answered calls."""
        enough = self.answers + more
        try:
            wait_until(lambda: self.answers >= enough, "answers")
        except AssertionError as error:
            raise AssertionError(f"{error}; {len(self.failures)} failures: {self.failures[-3:]}") from None

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def test_a_dead_process_does_not_disturb_callers_of_other_models(repository: Path) -> None:
    with supervised(repository) as served:
        others, callers = Callers(served.server, "other"), Callers(served.server, "toy")
        for number in (1, 2):
            callers.wait_for_answers()
            served.kill("toy_tokenize_0_0")
            served.wait_for_line("the Python process of toy_tokenize died (killed by signal 9); serving again", number)
            callers.wait_for_answers()
            others.wait_for_answers()
        callers.end()
        others.end()
        assert others.failures == []
        assert all("toy_tokenize" in failure for failure in callers.failures), callers.failures
        assert len(callers.failures) <= 20  # requests inside the dead processes: each takes a second to fail
        assert served.server.pid == served.pid


def test_a_stop_waits_for_a_model_that_is_being_replaced(repository: Path) -> None:
    server = EmbeddedServer(repository, private=True)
    server.start()
    pid, copy, begun, made = server.pid, server.folder / "repository" / "new", threading.Event(), []

    def replace() -> None:
        with server.loaded.changing():
            begun.set()
            wait_until(lambda: not process.is_running(pid, pid))
            time.sleep(0.5)
            copy.mkdir()
            made.append(copy)

    thread, loaded = threading.Thread(target=replace), server.loaded
    thread.start()
    begun.wait()
    server.stop()
    thread.join()
    assert made == [copy] and left_behind() == []
    with pytest.raises(ServerError, match="has been stopped"):
        loaded.reload("toy")


def test_a_stopped_process_is_replaced_alone(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PROBE_SECONDS", 0.2)
    with supervised(repository) as served:
        others = Callers(served.server, "other")
        served.kill("toy_tokenize_0_0", signal.SIGSTOP)
        served.wait_for_line("is not healthy.); serving again after")
        with Client(served.server.grpc_url) as client:
            assert client.classify("toy", "four").label == "4 characters"
        others.end()
        assert others.failures == []
        assert served.server.pid == served.pid


def test_a_stop_after_deaths_is_as_clean_as_without(repository: Path) -> None:
    """Triton 2.51 never unloads a model whose process died with requests in it."""
    with EmbeddedServer(repository, private=True, exit_timeout=100) as server:
        callers = Callers(server, "toy", 4)
        for _ in range(2):
            callers.wait_for_answers()
            os.kill(server.stubs()["toy_tokenize_0_0"][-1], signal.SIGKILL)
            wait_until(server.deaths)
            server.loaded.swap(["toy_tokenize"])
        callers.wait_for_answers()
        callers.end()
        assert server.fault() == ""
        with server.log.open() as log:
            assert server.stop(), log.read()[-5000:]
    assert left_behind() == []


def test_a_model_that_does_not_load_again_is_tried_while_the_others_serve(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "MAX_RESTARTS", 1)
    flag = tmp_path / "flag"
    write_flaky(repository, flag)
    with supervised(repository) as served:
        others = Callers(served.server, "other")
        flag.touch()
        served.kill("flaky_0_0")
        served.wait_for_line("restart 1 of 1 failed: Triton did not load flaky")
        served.wait_for_line("it is tried again every")
        wait_until(lambda: served.faults[1:] == ["the Python process of flaky died (killed by signal 9)", ""])
        assert "the flag is set" in served.lines[0]
        others.wait_for_answers()
        flag.unlink()
        served.wait_for_line("serving again after")
        others.end()
        assert others.failures == []
        assert served.server.pid == served.pid


def test_a_death_under_open_streams_is_no_swap(repository: Path) -> None:
    """The streams would hang in Triton 2.51; when the whole server is killed they end at once."""
    write_ticks(repository)
    with EmbeddedServer(repository, private=True) as server:
        assert server.loaded.can_swap(["toy_tokenize"])
        assert not server.loaded.can_swap(["ticks"])
        assert not server.loaded.can_swap(["nonesuch"])
        server.kill()
