"""The liveness probes and their verdicts, against a misbehaving peer that imitates a Triton server."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hfx.triton import liveness, recovery
from hfx.triton.liveness import Death, Target, process_table
from hfx.triton.liveness.__main__ import main
from hfx.triton.supervisor import ProbeLoop
from tests.rigs.machine.waiting import wait_until

TEXT = {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}
NUMBER = {"name": "input_ids", "data_type": "TYPE_INT64", "dims": [-1]}
LOST = "Failed to process the request(s) for model 'x_0_0', message: Stub process 'x_0_0' is not healthy."
PATIENCE = 0.3

Answer = bytes | Callable[[], bytes | None]  # of a path; None: no answer, ever


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide other servers of this machine, as they are not the peer's processes."""
    monkeypatch.setattr(process_table, "STUB", "no such stub")
    monkeypatch.setattr(process_table, "SERVER", "no such server")


def http(body: Any, status: str = "200 OK") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def error(text: str, status: str = "500 Internal Server Error") -> bytes:
    return http({"error": text}, status)


def config(name: str, *inputs: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"name": name, "max_batch_size": 8, "input": list(inputs)} | others


class Peer:
    """A server of raw answers by path, with one thread a connection; `asked` has the requests in order."""

    def __init__(self, listener: socket.socket, answers: dict[str, Answer]) -> None:
        self.target = Target(f"http://127.0.0.1:{listener.getsockname()[1]}")
        self.asked: list[tuple[str, bytes]] = []
        self.closing = threading.Event()
        self._listener = listener
        self._answers = answers
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            if b"POST" in head and not body:
                body = connection.recv(1 << 16)
            self.asked.append((path, body))
            answer = self._answers.get(path, http({"error": "no such path"}, "404 Not Found"))
            sent = answer if isinstance(answer, bytes) else answer()
            if sent is None:
                self.closing.wait(30)
            else:
                connection.sendall(sent)


@contextmanager
def peer(answers: dict[str, Answer], *configs: dict[str, Any]) -> Iterator[Peer]:
    known: dict[str, Answer] = {f"/v2/models/{c['name']}/config": http(c) for c in configs}
    known["/v2/models/stats"] = http({"model_stats": [{"name": c["name"], "version": "1"} for c in configs]})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Peer(listener, {**known, **answers})
        try:
            yield found
        finally:
            found.closing.set()


def verdict(answers: dict[str, Answer]) -> Death | None:
    with peer(answers, config("x", TEXT)) as found:
        [probe] = liveness.probes(found.target)
        return liveness.send(found.target, probe, PATIENCE)


# Verdicts

INFER, STATISTICS = "/v2/models/x/infer", "/v2/models/x/stats"


@pytest.mark.parametrize(
    "answer",
    [error(LOST), error(LOST, "400 Bad Request"), http({"error": LOST}), error("Stub process is not healthy.")],
)
def test_only_a_lost_process_is_a_death(answer: bytes) -> None:
    death = verdict({INFER: answer})
    assert death is not None and death.models == ("x",)
    assert death.reason.startswith("x can't answer (Stub process ")


def test_a_lost_member_is_named_by_its_instance() -> None:
    death = verdict({INFER: error("in ensemble 'x', Stub process 'x_tokenize_0_1' is not healthy.")})
    assert death is not None and death.models == ("x_tokenize",)


@pytest.mark.parametrize(
    "answer",
    [
        http({"outputs": []}),
        error("Exceeds maximum queue size", "503 Service Unavailable"),
        error("max_tokens is 1; allowed: 2", "400 Bad Request"),
        error("a bug in the model"),
        error("not healthy", "404 Not Found"),
        http(b"\xff\xfe{{{"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort",
        b"",
    ],
)
def test_other_answers_and_broken_connections_are_no_deaths(answer: bytes) -> None:
    assert verdict({INFER: answer}) is None


def silent() -> None:
    return None


def statistics(successes: int, failures: int = 0) -> bytes:
    counts = {"success": {"count": successes}, "fail": {"count": failures}}
    return http({"model_stats": [{"inference_stats": counts, "execution_count": failures}]})


NUMBERS = itertools.count()


@pytest.mark.parametrize(
    "answer",
    [lambda: statistics(7), lambda: error("what?"), lambda: statistics(7, next(NUMBERS))],
    ids=["the same statistics", "none", "only failures"],
)
def test_silence_without_progress_is_a_death_after_one_probe(answer: Callable[[], bytes]) -> None:
    with peer({INFER: silent, STATISTICS: answer}, config("x", TEXT)) as found:
        [probe] = liveness.probes(found.target)
        death = liveness.send(found.target, probe, PATIENCE)
        assert death == Death(("x",), "x gave no answer for 0.6 s and did nothing meanwhile")
        assert [path for path, _ in found.asked].count(INFER) == 1


def test_failures_without_progress_are_a_death_long_before_silence_is() -> None:
    with peer({INFER: silent, STATISTICS: lambda: statistics(7, next(NUMBERS))}, config("x", TEXT)) as found:
        [probe] = liveness.probes(found.target)
        death = liveness.send(found.target, probe, patience=60.0)
    assert death is not None and death.models == ("x",)
    assert re.fullmatch(r"x gave no answer for \d\.\d s in which requests failed and none succeeded", death.reason)


@pytest.mark.parametrize("source", ["statistics of the model", "steps of the engine"])
def test_a_silent_model_that_makes_progress_is_alive(source: str) -> None:
    numbers = itertools.count()
    by_statistics = source.startswith("statistics")

    def late() -> bytes:
        time.sleep(5 * PATIENCE)
        return http({})

    def count() -> bytes:
        return (
            statistics(next(numbers))
            if by_statistics
            else http(f'hfx_steps_total{{model="x"}} {next(numbers)}\n'.encode())
        )

    counting: dict[str, Answer] = {STATISTICS if by_statistics else "/metrics": count}
    with peer({INFER: late, STATISTICS: statistics(7), "/metrics": http(b""), **counting}, config("x", TEXT)) as found:
        target = Target(found.target.http_url, f"{found.target.http_url}/metrics")
        [probe] = liveness.probes(target)
        assert liveness.send(target, probe, PATIENCE) is None
    assert next(numbers) >= 2  # it was looked at


def test_a_server_that_ceases_to_be_ready_is_probed_at_once() -> None:
    refusal = http(b"", "400 Bad Request")  # Triton 26.01 and later, when a process has died
    has_died = threading.Event()
    ready: Answer = lambda: refusal if has_died.is_set() else http(b"")  # noqa: E731
    with peer({INFER: error(LOST), "/v2/health/ready": ready}, config("x", TEXT)) as found:
        probing = ProbeLoop(found.target, interval=600.0, patience=PATIENCE)
        wait_until(lambda: [path for path, _ in found.asked].count("/v2/health/ready") > 1)
        assert INFER not in [path for path, _ in found.asked]
        has_died.set()
        [death] = wait_until(lambda: probing.deaths)
        probing.stop()
    assert "'x_0_0'" in death.reason


# Questions


def body(found: Peer, path: str) -> Any:
    return json.loads(next(sent for asked, sent in found.asked if asked == path))


@pytest.mark.parametrize(("rows", "batch"), [(8, [1]), (0, [])], ids=["batching", "without batches"])
def test_every_required_text_is_given_in_its_shape(rows: int, batch: list[int]) -> None:
    labels = {"name": "candidate_labels", "data_type": "TYPE_STRING", "dims": [-1, 2]}
    optional = {"name": "top_k", "data_type": "TYPE_INT32", "dims": [1], "optional": True}
    with peer({INFER: http({})}, config("x", TEXT, labels, optional, max_batch_size=rows)) as found:
        assert main([found.target.http_url]) == 0
        inputs = body(found, INFER)["inputs"]
    assert [(tensor["name"], tensor["shape"], tensor["data"]) for tensor in inputs] == [
        ("text_input", [*batch, 1], ["hi"]),
        ("candidate_labels", [*batch, 1, 2], ["hi", "hi"]),
    ]


def test_a_generator_is_probed_for_one_token_directly_and_by_its_relay() -> None:
    settings = [
        {"name": name, "data_type": "TYPE_INT32", "dims": [1], "optional": True}
        for name in ("max_tokens", "timeout_ms")
    ]
    relay = config("x", TEXT, *settings, parameters={"engine": {"string_value": "x_stream"}})
    engine = config("x_stream", TEXT, *settings, model_transaction_policy={"decoupled": True})
    with peer({INFER: http({}), "/v2/models/x_stream/generate": http({})}, relay, engine) as found:
        requests = liveness.probes(found.target)
        assert [liveness.send(found.target, probe) for probe in requests] == [None, None]
        assert body(found, "/v2/models/x_stream/generate") == {"text_input": "hi", "max_tokens": 1, "timeout_ms": 10000}
        assert [tensor["data"] for tensor in body(found, INFER)["inputs"]] == [["hi"], [1], [10000]]
    assert {probe.model: probe.workers for probe in requests} == {"x": ("x", "x_stream"), "x_stream": ("x_stream",)}


def test_an_ensemble_covers_its_members_and_numeric_inputs_are_not_probed() -> None:
    steps = {"step": [{"model_name": "x_tokenize"}, {"model_name": "x_net"}]}
    ensemble = config("x", TEXT, ensemble_scheduling=steps)
    with peer({}, ensemble, config("x_tokenize", TEXT), config("x_net", NUMBER), config("alone", TEXT)) as found:
        workers = {probe.model: probe.workers for probe in liveness.probes(found.target)}
    assert workers == {"x": ("x_tokenize", "x_net"), "alone": ("alone",)}


# The health check


@pytest.mark.parametrize(
    ("answer", "code", "line"),
    [
        (http({}), 0, "healthy: x, y\n"),
        (error(LOST), 1, "unhealthy: x can't answer (Stub process 'x_0_0' is not healthy.)\n"),
    ],
)
def test_the_health_of_a_server_is_one_line(
    answer: bytes, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: dict[str, Answer] = {INFER: answer, "/v2/models/y/infer": http({})}
    with peer(answers, config("x", TEXT), config("y", TEXT), config("numbers", NUMBER)) as found:
        assert main([found.target.http_url]) == code
    assert capsys.readouterr().out == line


@pytest.mark.parametrize(
    "index",
    [b"", b"garbage", http(b"no JSON"), http({"a": 1}), http([1]), http([{}]), error("closed", "403 Forbidden")],
)
def test_a_peer_that_is_not_triton_is_unhealthy(index: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with peer({"/v2/models/stats": index}) as found:
        assert main([found.target.http_url]) == 1
    assert capsys.readouterr().out.startswith("unhealthy: ")


def test_where_nothing_listens_it_is_unhealthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main([f"http://127.0.0.1:{port}"]) == 1


# Restarts


def test_the_first_restart_comes_at_once_and_each_further_one_later_up_to_a_bound() -> None:
    assert recovery.pause(0) == 0
    for restarts in range(1, 60):
        longest = min(2.0 ** (restarts - 1), recovery.MAX_PAUSE_SECONDS)
        pauses = {recovery.pause(restarts) for _ in range(20)}
        assert longest / 2 <= min(pauses) <= max(pauses) <= longest
        assert len(pauses) > 10  # servers that died together do not restart together


@pytest.mark.parametrize("emulator", [[], ["/usr/bin/an-emulator"]], ids=["itself", "by an emulator"])
def test_a_stub_is_known_by_its_arguments(emulator: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images for another processor are run by qemu-user, with whose name the command line begins."""
    monkeypatch.setattr(process_table, "STUB", "a_stub")
    words = [*emulator, f"{tmp_path}/a_stub", *"1234567", "entities_tokenize_0_0"]
    pipe = subprocess.PIPE
    # `tee` takes any words, and runs until its standard input ends.
    with subprocess.Popen(words, executable=shutil.which("tee"), cwd=tmp_path, stdin=pipe, stdout=pipe) as running:
        # Its arguments can be read a moment after it was started.
        wait_until(lambda: (process := process_table.read_process(running.pid)) and process.instance)
        process = process_table.read_process(running.pid)
        assert process is not None and process.instance == "entities_tokenize_0_0"
        assert running.stdin is not None
        running.stdin.close()
