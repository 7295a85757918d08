"""Idle models give their memory back, and are loaded again for the next request."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from hfx.client import Client
from hfx.errors import ModelUnknown, UsageError
from hfx.triton import EmbeddedServer, commands, process
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import ServeProcess, infer, post, serving
from tests.rigs.servers.toy_models import PYTHON, ensemble, loading, write_model, write_ticks, write_toy
from tests.triton.test_reload import write_echo

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]
SOON = ("--idle-unload", "1")
BALLAST = 60_000_000  # bytes of a model of `heavy`


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_ticks(write_toy(tmp_path / "repository"))


def heavy(repository: Path, *names: str) -> Path:
    for name in names:
        write_model(repository, name, PYTHON, loading(f"self.ballast = b'x' * {BALLAST}"))
    return repository


def get(server: ServeProcess, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(server.http_url + path) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def sample(server: ServeProcess, name: str, model: str) -> float:
    """Return the metric hfx_model_NAME of `model`, or -1 while the front does not know the model."""
    _, text = get(server, "/metrics")
    found = re.search(rf'^hfx_model_{name}{{model="{model}"}} (\S+)$', text.decode(), re.MULTILINE)
    return float(found[1]) if found else -1


def wait_for_unload(server: ServeProcess, *models: str) -> None:
    for model in models:
        wait_until(lambda model=model: sample(server, "loaded", model) == 0, f"the unload of {model}")  # type: ignore[misc]
        wait_until(lambda model=model: states(server)[model] == "UNAVAILABLE", f"the end of {model}")  # type: ignore[misc]


def states(server: ServeProcess) -> dict[str, str]:
    """Return the states of the models by Triton."""
    _, rows = post(f"{server.http_url}/v2/repository/index", {})
    return {row["name"]: row.get("state", "UNAVAILABLE") for row in rows}


def refused(server: ServeProcess, model: str) -> tuple[str, str]:
    """Return the reason and Retry-After of a 503 for a request to `model`."""
    body = {"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["four"]}]}
    request = urllib.request.Request(f"{server.http_url}/v2/models/{model}/infer", json.dumps(body).encode())
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request)
    assert raised.value.code == 503
    return json.load(raised.value)["error"], raised.value.headers["Retry-After"]


def answered(server: ServeProcess, model: str) -> str:
    """Return the answer of `model` once it gives one."""

    def attempt() -> str:
        with suppress(AssertionError, OSError):
            return infer(server.http_url, model, "four")
        return ""

    return wait_until(attempt, f"an answer of {model}")


def test_a_model_that_was_unloaded_answers_with_the_same_bits(writers: Path) -> None:
    def answers() -> list[Any]:
        generated = {"text_input": "Anna was", "max_tokens": 12}
        return [
            post(f"{server.http_url}/v2/models/stories/generate", generated),
            post(f"{server.http_url}/v1/completions", {"model": "notes", "prompt": "Anna", "max_tokens": 5})[1][
                "choices"
            ],
            post(f"{server.http_url}/models/sentiment", {"inputs": ["a fine day", "a bad one"]}),
        ]

    def descriptions() -> list[Any]:
        ends = ("", "/config", "/ready")
        paths = [f"/v2/models/{model}{end}" for model in ("sentiment", "stories") for end in ends]
        found = [get(server, path) for path in ("/v1/models", "/health", "/v2/health/ready", *paths)]
        return [(status, json.loads(text or "{}")) for status, text in found]

    with serving(writers, *SOON, "--models", "sentiment,stories,notes") as server:
        described = descriptions()
        before = answers()
        memory = process.memory(server.server)
        for _ in range(2):
            wait_for_unload(server, "sentiment", "stories", "notes")
            assert process.memory(server.server) < memory / 2
            assert process.stubs(server.server) == {}
            assert descriptions() == described
            assert {status for status, _ in described} == {200}
            assert answers() == before
        assert sample(server, "loads_total", "sentiment") == sample(server, "unloads_total", "sentiment") == 2
        assert 0 < sample(server, "load_wait_seconds_total", "stories") < 60


def test_requests_at_the_same_time_share_one_load_and_no_stop_waits_for_it(repository: Path) -> None:
    with serving(repository, *SOON) as server:
        wait_for_unload(server, "toy")
        with Client(server.ready["grpc_url"]) as client, pytest.raises(ModelUnknown) as raised:
            client.classify("toy", "four")
        assert "not loaded" in raised.value.message and "HTTP port" in raised.value.fix
        with ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(lambda _: infer(server.http_url, "toy", "four"), range(16)))
        assert texts == ["4 characters"] * 16
        assert sample(server, "loads_total", "toy") == 1
        server.running.terminate()
        assert server.end() == 0
        assert "no accepted request was lost" in server.words


def test_requests_and_streams_in_progress_are_never_cut(repository: Path) -> None:
    with serving(repository, *SOON) as server, ThreadPoolExecutor() as pool:
        wait_for_unload(server, "toy", "ticks")
        long = pool.submit(infer, server.http_url, "toy", "sleep 4")
        request = urllib.request.Request(f"{server.http_url}/v2/models/ticks/generate_stream", b'{"text_input": "40"}')
        with urllib.request.urlopen(request) as stream:
            pieces = [json.loads(line[6:])["text_output"] for line in stream if line.strip()]
        assert pieces == [str(number) for number in range(40)]
        assert long.result() == "7 characters"
        assert [sample(server, "loads_total", name) for name in ("toy", "ticks")] == [1, 1]
        wait_for_unload(server, "toy", "ticks")


def test_loaded_models_stay_within_the_memory_budget(tmp_path: Path) -> None:
    names = ("first", "second", "third")
    repository = heavy(tmp_path / "repository", *names)
    seen: list[set[str]] = []
    memory: list[int] = []
    with serving(repository, "--memory-budget", "200MB") as server:  # each takes some 80 MB

        def poll(ended: threading.Event) -> None:
            while not ended.is_set():
                seen.append({name for name, state in states(server).items() if state != "UNAVAILABLE"})
                memory.append(process.memory(server.server))

        ended = threading.Event()
        thread = threading.Thread(target=poll, args=(ended,))
        thread.start()
        for number in range(6):
            assert infer(server.http_url, names[number % 3], "four") == "4 characters"
        with ThreadPoolExecutor(6) as pool:
            texts = list(pool.map(lambda number: infer(server.http_url, names[number % 3], "four"), range(9)))
        ended.set()
        thread.join()
        assert texts == ["4 characters"] * 9
        assert max(len(models) for models in seen) == 2
        assert max(memory) < 200e6 + 70e6
        assert {name for models in seen for name in models} == set(names)
        assert [60e6 < sample(server, "memory_bytes", name) < 100e6 for name in names] == [True] * 3
        infer(server.http_url, "first", "four")
        infer(server.http_url, "second", "four")
        infer(server.http_url, "first", "four")
        infer(server.http_url, "third", "four")
        assert [sample(server, "loaded", name) for name in names] == [1, 0, 1]  # the second was used least recently


def test_a_model_that_is_too_large_for_the_budget_is_refused_by_name(tmp_path: Path) -> None:
    repository = heavy(write_toy(tmp_path / "repository"), "giant")
    with (
        pytest.raises(UsageError, match=r"The model 'giant' takes [6-9][0-9] MB, more than a memory budget of 50 MB"),
        EmbeddedServer(repository, private=True, budget=50_000_000),
    ):
        pass
    with EmbeddedServer(repository, private=True, budget=50_000_000, models=["toy"]) as server:
        assert server.loaded.served() == ["toy"]


def test_a_load_that_fails_is_a_503_with_its_reason_until_the_files_are_repaired(tmp_path: Path) -> None:
    repository, flag = write_toy(tmp_path / "repository"), tmp_path / "flag"
    statements = ("import os", f"if os.path.exists({str(flag)!r}):", "    raise ValueError('the weights are torn')")
    write_model(repository, "flaky", PYTHON, loading(*statements))
    with serving(repository, *SOON) as server:
        wait_for_unload(server, "flaky", "toy")
        flag.touch()
        for _ in range(2):
            reason, retry_after = refused(server, "flaky")
            assert "Triton did not load flaky" in reason and "the weights are torn" in reason
            assert reason.count("Try again later.") == 1
            assert retry_after == "1"
        assert server.words.count("Triton did not load flaky") == 1
        assert get(server, "/health")[0] == 200
        assert infer(server.http_url, "toy", "four") == "4 characters"
        flag.unlink()
        assert answered(server, "flaky") == "4 characters"


def test_torn_files_of_an_encoder_are_a_503_until_they_are_repaired(writers: Path, temporary: Path) -> None:
    with serving(writers, *SOON, "--models", "sentiment") as server:
        wait_for_unload(server, "sentiment")
        [file] = temporary.glob("hfx-*/repository/sentiment*/1/**/*.onnx")
        kept = file.rename(file.with_name("kept"))
        file.write_bytes(kept.read_bytes()[:1000])
        reason, _ = refused(server, "sentiment")
        assert "Triton did not load sentiment" in reason and str(temporary) not in reason
        kept.replace(file)
        assert answered(server, "sentiment")


def test_a_server_that_is_killed_comes_back_with_what_was_loaded(repository: Path) -> None:
    with serving(repository, "--idle-unload", "2") as server:
        wait_for_unload(server, "toy", "ticks")
        before = server.server
        os.kill(before, signal.SIGKILL)
        server.wait_for_words("serving again after")
        assert server.server != before
        assert set(states(server).values()) == {"UNAVAILABLE"}
        assert get(server, "/health")[0] == 200
        assert infer(server.http_url, "toy", "four") == "4 characters"
        os.kill(server.server, signal.SIGKILL)
        wait_until(lambda: server.words.count("serving again after") == 2)
        assert states(server)["toy"] == "READY" and states(server)["ticks"] == "UNAVAILABLE"
        assert infer(server.http_url, "toy", "four") == "4 characters"
        os.kill(server.stub("toy_tokenize"), signal.SIGKILL)
        server.wait_for_words("the Python process of toy_tokenize died (killed by signal 9); serving again")
        assert infer(server.http_url, "toy", "four") == "4 characters"
        wait_for_unload(server, "toy")
        [front] = server.fronts
        os.kill(front, signal.SIGKILL)
        server.wait_for_words("the HTTP front died")
        assert answered(server, "toy") == "4 characters"


def test_a_load_that_a_kill_interrupts_is_repeated(tmp_path: Path) -> None:
    repository, flag = tmp_path / "repository", tmp_path / "flag"
    write_model(
        repository, "slow", PYTHON, loading("import os", f"while os.path.exists({str(flag)!r}):", "    time.sleep(0.1)")
    )
    with serving(repository, *SOON) as server, ThreadPoolExecutor() as pool:

        def loading_again(restarts: int) -> None:
            wait_until(lambda: server.words.count("serving again after") == restarts)
            wait_until(lambda: "slow_0_0" in process.stubs(server.server))

        wait_for_unload(server, "slow")
        flag.touch()
        waiting = pool.submit(infer, server.http_url, "slow", "four")
        loading_again(0)
        os.kill(server.server, signal.SIGKILL)
        loading_again(1)
        flag.unlink()
        assert waiting.result() == "4 characters"  # a request that only waited for the load goes on to wait
        wait_for_unload(server, "slow")
        flag.touch()
        refusal = pool.submit(refused, server, "slow")
        for restarts in (1, 2):
            loading_again(restarts)
            os.kill(server.server, signal.SIGKILL)
        reason, retry_after = refusal.result()
        assert reason.startswith("Triton did not load slow") and retry_after == "1"
        wait_until(lambda: server.words.count("serving again after") == 3)
        later = pool.submit(answered, server, "slow")
        loading_again(3)
        [front] = server.fronts
        os.kill(front, signal.SIGKILL)
        server.wait_for_words("the HTTP front died")
        assert sample(server, "loaded", "slow") == 0  # the next front does not wait for the load
        flag.unlink()
        assert later.result() == "4 characters"


def test_a_model_that_is_published_anew_while_unloaded_is_loaded_as_it_is_then(tmp_path: Path, temporary: Path) -> None:
    def echo() -> str:
        body = {"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["x"]}]}
        status, answer = post(f"{server.http_url}/v2/models/echo/infer", body)
        assert status == 200, answer
        return str(answer["outputs"][0]["data"][0])

    repository = write_toy(tmp_path / "repository")
    write_echo(repository, "old")
    with serving(repository, *SOON) as server:
        assert echo() == "x old old"
        [path] = temporary.glob(f"hfx-*/{commands.SOCKET}")
        for generation in ("new", "newer"):
            wait_for_unload(server, "echo")
            write_echo(repository, generation)
            assert commands.send(path, "reload", ["echo"])["outcomes"][0]["outcome"] == "reloaded"
            assert "echo" not in [name for name, state in states(server).items() if state == "READY"]
            assert echo() == f"x {generation} {generation}"
        write_toy(repository, "added")
        commands.send(path, "reload", ["added"])
        assert infer(server.http_url, "added", "four") == "4 characters"
        wait_for_unload(server, "added", "echo")
        commands.send(path, "unload", ["echo"])
        wait_until(lambda: post(f"{server.http_url}/v2/models/echo/infer", {"inputs": []})[0] in (400, 404))
        assert infer(server.http_url, "added", "four") == "4 characters"


def test_a_load_goes_on_when_its_client_leaves(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_model(repository, "slow", PYTHON, loading("time.sleep(2)"))
    with serving(repository, "--idle-unload", "3") as server:
        wait_for_unload(server, "slow")
        body = json.dumps({"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["x"]}]})
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection((urlsplit(server.http_url).hostname, urlsplit(server.http_url).port)) as client:
            client.sendall(f"{head}{body}".encode())
            wait_until(lambda: process.stubs(server.server))
        wait_until(lambda: sample(server, "loaded", "slow") == 1)
        assert infer(server.http_url, "slow", "four") == "4 characters"
        assert sample(server, "loads_total", "slow") == 1
        assert "Traceback" not in server.words


def test_other_models_answer_while_one_is_loaded(tmp_path: Path) -> None:
    """Triton 2.51 loads a model in a thread of its HTTP server; requests on that thread get no answer meanwhile."""
    repository = write_toy(tmp_path / "repository")
    write_model(repository, "slow", PYTHON, loading("time.sleep(2)"))
    with serving(repository, "--idle-unload", "3") as server, ThreadPoolExecutor(8) as pool:

        def unloaded() -> bool:
            infer(server.http_url, "toy", "four")  # which stays loaded
            return sample(server, "loaded", "slow") == 0 and "slow_0_0" not in process.stubs(server.server)

        for number in range(3):
            wait_until(unloaded)
            load = pool.submit(infer, server.http_url, "slow", "four")
            wait_until(lambda: "slow_0_0" in process.stubs(server.server))
            texts = [*pool.map(lambda _: infer(server.http_url, "toy", "four"), range(40))]
            assert texts == ["4 characters"] * 40
            if number == 2 and not load.done():  # the earlier loads have shown which connections those are
                assert get(server, "/health")[0] == 200
                assert sample(server, "loaded", "slow") == 0
            assert load.result() == "4 characters"
        assert sample(server, "loads_total", "toy") == 0


def test_a_step_shared_by_two_ensembles_stays_loaded_for_the_other(tmp_path: Path) -> None:
    repository = write_toy(tmp_path / "repository")
    write_model(repository, "twin", ensemble("toy_tokenize"))
    with EmbeddedServer(repository, private=True) as server:
        loaded = server.loaded
        assert loaded.residency.names() == ["toy", "twin"]
        loaded.release("toy")
        assert loaded.residency.loaded_folders() == {"twin", "toy_tokenize"} == set(server.statistics())
        loaded.release("twin")
        assert server.statistics() == {} == server.stubs()
        assert server.fault() == ""
        loaded.load("twin")
        assert set(server.statistics()) == {"twin", "toy_tokenize"}
        loaded.load("toy")
        assert len(server.stubs()["toy_tokenize_0_0"]) == 1
