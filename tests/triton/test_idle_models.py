"""Idle models give their memory back, and are loaded again for the next request."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hfx.client import Client
from hfx.errors import ModelUnknown, UsageError
from hfx.triton import EmbeddedServer, commands, process
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import RUNTIMES, SLOTS, WRITERS
from tests.rigs.servers.serve_process import ServeProcess, infer, post, serving
from tests.rigs.servers.short_servers import started
from tests.rigs.servers.toy_models import PYTHON, ensemble, loading, write_flaky, write_model, write_ticks, write_toy
from tests.triton.test_reload import write_echo

pytestmark = pytest.mark.triton
SOON = ("--idle-unload", "1")
BALLAST = 60_000_000  # bytes of a model of `heavy`


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for empty files: while the file `flaky` or `held` exists, the model with its name does not load."""
    return tmp_path_factory.mktemp("flags")


@pytest.fixture(scope="module")
def repository(flags: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the models `toy`, `ticks` and `echo`, `slow`, which loads in a second, and `flaky`."""
    folder = write_ticks(write_toy(tmp_path_factory.mktemp("repository")))
    write_echo(folder, "old")
    write_model(folder, "slow", PYTHON, loading("time.sleep(1)"))
    return write_flaky(folder, flags / "flaky")


@contextmanager
def serving_in(temporary: Path, repository: Path, *options: str) -> Iterator[ServeProcess]:
    """Serve `repository`, with the folder `temporary` for temporary files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        with serving(repository, *options) as running:
            yield running


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files of `idle`."""
    return tmp_path_factory.mktemp("tmp")


@pytest.fixture(scope="module")
def idle(repository: Path, workspace: Path) -> Iterator[ServeProcess]:
    with serving_in(workspace, repository, *SOON) as running:
        yield running


@pytest.fixture(scope="module")
def killed(flags: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A server whose processes are killed. The model `held` is loaded only once its flag is removed."""
    repository = write_ticks(write_toy(tmp_path_factory.mktemp("repository")))
    statements = (f"while os.path.exists({str(flags / 'held')!r}):", "    time.sleep(0.1)")
    write_model(repository, "held", PYTHON, loading("import os", *statements))
    with serving_in(tmp_path_factory.mktemp("tmp"), repository, "--idle-unload", "2") as running:
        yield running


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServeProcess, Path]]:
    """A server of trained models, and its folder for temporary files."""
    temporary, folder = tmp_path_factory.mktemp("tmp"), tmp_path_factory.mktemp("trained")
    export_zoo("sentiment-distilbert", folder, "sentiment", "int8")
    export_zoo(WRITERS["stories"], folder, "stories", "int8", RUNTIMES["stories"], slots=SLOTS["stories"])
    with serving_in(temporary, folder, *SOON) as running:
        yield running, temporary


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


def kill_server(server: ServeProcess) -> None:
    """Kill Triton, and wait until it serves again."""
    restarts = server.words.count("serving again after")
    os.kill(server.server, signal.SIGKILL)
    wait_until(lambda: server.words.count("serving again after") > restarts, "a restart")


def kill_front(server: ServeProcess) -> None:
    """Kill the front, and wait until its death is found."""
    deaths = server.words.count("the HTTP front died")
    [front] = server.fronts
    os.kill(front, signal.SIGKILL)
    wait_until(lambda: server.words.count("the HTTP front died") > deaths, "a new front")


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


def test_a_model_that_was_unloaded_answers_with_the_same_bits(trained: tuple[ServeProcess, Path]) -> None:
    server, _ = trained

    def answers() -> list[Any]:
        generated = {"text_input": "Anna was", "max_tokens": 12}
        return [
            post(f"{server.http_url}/v2/models/stories/generate", generated),
            post(f"{server.http_url}/models/sentiment", {"inputs": ["a fine day", "a bad one"]}),
        ]

    def descriptions() -> list[Any]:
        ends = ("", "/config", "/ready")
        paths = [f"/v2/models/{model}{end}" for model in ("sentiment", "stories") for end in ends]
        found = [get(server, path) for path in ("/v1/models", "/health", "/v2/health/ready", *paths)]
        return [(status, json.loads(text or "{}")) for status, text in found]

    described = descriptions()
    before = answers()
    memory = process.memory(server.server)
    wait_for_unload(server, "sentiment", "stories")
    assert process.memory(server.server) < memory / 2
    assert process.stubs(server.server) == {}
    assert descriptions() == described
    assert {status for status, _ in described} == {200}
    assert answers() == before
    assert sample(server, "loads_total", "sentiment") == sample(server, "unloads_total", "sentiment") == 1
    assert 0 < sample(server, "load_wait_seconds_total", "stories") < 60


def test_torn_files_of_an_encoder_are_a_503_until_they_are_repaired(trained: tuple[ServeProcess, Path]) -> None:
    server, temporary = trained
    wait_for_unload(server, "sentiment")
    [file] = temporary.glob("hfx-*/repository/sentiment*/1/**/*.onnx")
    kept = file.rename(file.with_name("kept"))
    file.write_bytes(kept.read_bytes()[:1000])
    reason, _ = refused(server, "sentiment")
    assert "Triton did not load sentiment" in reason and str(temporary) not in reason
    kept.replace(file)
    assert answered(server, "sentiment")


def test_requests_at_the_same_time_share_one_load(idle: ServeProcess) -> None:
    wait_for_unload(idle, "toy")
    loads = sample(idle, "loads_total", "toy")
    with Client(idle.ready["grpc_url"]) as client, pytest.raises(ModelUnknown) as raised:
        client.classify("toy", "four")
    assert "not loaded" in raised.value.message and "HTTP port" in raised.value.fix
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda _: infer(idle.http_url, "toy", "four"), range(16)))
    assert texts == ["4 characters"] * 16
    assert sample(idle, "loads_total", "toy") == loads + 1


def test_requests_and_streams_in_progress_are_never_cut(idle: ServeProcess) -> None:
    wait_for_unload(idle, "toy", "ticks")
    loads = [sample(idle, "loads_total", name) for name in ("toy", "ticks")]
    with ThreadPoolExecutor() as pool:
        long = pool.submit(infer, idle.http_url, "toy", "sleep 2")
        request = urllib.request.Request(f"{idle.http_url}/v2/models/ticks/generate_stream", b'{"text_input": "20"}')
        with urllib.request.urlopen(request) as stream:
            pieces = [json.loads(line[6:])["text_output"] for line in stream if line.strip()]
        assert pieces == [str(number) for number in range(20)]
        assert long.result() == "7 characters"
    assert [sample(idle, "loads_total", name) for name in ("toy", "ticks")] == [before + 1 for before in loads]
    wait_for_unload(idle, "toy", "ticks")


def test_loaded_models_stay_within_the_memory_budget_and_no_stop_waits_for_a_load(tmp_path: Path) -> None:
    names = ("first", "second", "third")
    repository = heavy(tmp_path / "repository", *names)
    seen: list[set[str]] = []
    memory: list[int] = []
    with serving(repository, "--memory-budget", "200MB") as server:  # each takes some 80 MB

        def poll(ended: threading.Event) -> None:
            while not ended.wait(0.05):
                seen.append({name for name, state in states(server).items() if state != "UNAVAILABLE"})
                memory.append(process.memory(server.server))

        ended = threading.Event()
        thread = threading.Thread(target=poll, args=(ended,))
        thread.start()
        for name in names:
            assert infer(server.http_url, name, "four") == "4 characters"
        with ThreadPoolExecutor(6) as pool:
            texts = list(pool.map(lambda number: infer(server.http_url, names[number % 3], "four"), range(6)))
        ended.set()
        thread.join()
        assert texts == ["4 characters"] * 6
        assert max(len(models) for models in seen) == 2
        assert max(memory) < 200e6 + 70e6
        assert {name for models in seen for name in models} == set(names)
        assert [60e6 < sample(server, "memory_bytes", name) < 100e6 for name in names] == [True] * 3
        server.running.terminate()
        assert server.end() == 0
        assert "no accepted request was lost" in server.words


def test_a_model_that_is_too_large_for_the_budget_is_refused_by_name(tmp_path: Path) -> None:
    repository = heavy(tmp_path / "repository", "giant")
    with (
        pytest.raises(UsageError, match=r"'giant' takes [6-9][0-9] MB, .* 50 MB"),
        EmbeddedServer(repository, private=True, budget=50_000_000),
    ):
        pass


def test_a_load_that_fails_is_a_503_with_its_reason_until_the_files_are_repaired(
    idle: ServeProcess, flags: Path
) -> None:
    wait_for_unload(idle, "flaky")
    (flags / "flaky").touch()
    for _ in range(2):
        reason, retry_after = refused(idle, "flaky")
        assert "Triton did not load flaky" in reason and "the flag is set" in reason
        assert reason.count("Try again later.") == 1
        assert retry_after == "1"
    idle.wait_for_words("Triton did not load flaky")
    assert idle.words.count("Triton did not load flaky") == 1
    assert get(idle, "/health")[0] == 200
    assert infer(idle.http_url, "toy", "four") == "4 characters"
    (flags / "flaky").unlink()
    assert answered(idle, "flaky") == "4 characters"


def test_other_models_answer_while_one_is_loaded(idle: ServeProcess) -> None:
    """Triton 2.51 loads a model in a thread of its HTTP server; requests on that thread get no answer meanwhile."""

    def unloaded() -> bool:
        infer(idle.http_url, "toy", "four")  # which stays loaded
        return sample(idle, "loaded", "slow") == 0 and "slow_0_0" not in process.stubs(idle.server)

    assert infer(idle.http_url, "toy", "four") == "4 characters"
    loads = sample(idle, "loads_total", "toy")
    with ThreadPoolExecutor(8) as pool:
        for number in range(2):
            wait_until(unloaded)
            load = pool.submit(infer, idle.http_url, "slow", "four")
            wait_until(lambda: "slow_0_0" in process.stubs(idle.server))
            texts = [*pool.map(lambda _: infer(idle.http_url, "toy", "four"), range(40))]
            assert texts == ["4 characters"] * 40
            if number == 1 and not load.done():  # the earlier loads have shown which connections those are
                assert get(idle, "/health")[0] == 200
                assert sample(idle, "loaded", "slow") == 0
            while not load.done():
                infer(idle.http_url, "toy", "four")
            assert load.result() == "4 characters"
    assert sample(idle, "loads_total", "toy") == loads


def test_a_model_that_is_published_anew_while_unloaded_is_loaded_as_it_is_then(
    idle: ServeProcess, repository: Path, workspace: Path
) -> None:
    def echo() -> str:
        body = {"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["x"]}]}
        status, answer = post(f"{idle.http_url}/v2/models/echo/infer", body)
        assert status == 200, answer
        return str(answer["outputs"][0]["data"][0])

    assert echo() == "x old old"
    [path] = workspace.glob(f"hfx-*/{commands.SOCKET}")
    wait_for_unload(idle, "echo")
    write_echo(repository, "new")
    assert commands.send(path, "reload", ["echo"])["outcomes"][0]["outcome"] == "reloaded"
    assert "echo" not in [name for name, state in states(idle).items() if state == "READY"]
    assert echo() == "x new new"
    write_toy(repository, "added")
    commands.send(path, "reload", ["added"])
    assert infer(idle.http_url, "added", "four") == "4 characters"
    wait_for_unload(idle, "added", "echo")
    commands.send(path, "unload", ["echo"])
    wait_until(lambda: post(f"{idle.http_url}/v2/models/echo/infer", {"inputs": []})[0] in (400, 404))
    assert infer(idle.http_url, "added", "four") == "4 characters"


def test_a_server_that_is_killed_comes_back_with_what_was_loaded(killed: ServeProcess) -> None:
    wait_for_unload(killed, "toy", "ticks", "held")
    before = killed.server
    kill_server(killed)
    assert killed.server != before
    assert set(states(killed).values()) == {"UNAVAILABLE"}
    wait_until(lambda: get(killed, "/health")[0] == 200, "a healthy server")
    assert infer(killed.http_url, "toy", "four") == "4 characters"
    kill_server(killed)
    assert states(killed)["toy"] == "READY" and states(killed)["ticks"] == "UNAVAILABLE"
    assert infer(killed.http_url, "toy", "four") == "4 characters"
    os.kill(killed.stub("toy_tokenize"), signal.SIGKILL)
    killed.wait_for_words("the Python process of toy_tokenize died (killed by signal 9); serving again")
    assert infer(killed.http_url, "toy", "four") == "4 characters"
    wait_for_unload(killed, "toy")
    kill_front(killed)
    assert answered(killed, "toy") == "4 characters"


def test_a_load_that_a_kill_interrupts_is_repeated(killed: ServeProcess, flags: Path) -> None:
    wait_for_unload(killed, "held")
    (flags / "held").touch()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(infer, killed.http_url, "held", "four")
        wait_until(lambda: "held_0_0" in process.stubs(killed.server))
        kill_server(killed)
        wait_until(lambda: "held_0_0" in process.stubs(killed.server))
        (flags / "held").unlink()
        assert waiting.result() == "4 characters"  # a request that only waited for the load goes on to wait
        wait_for_unload(killed, "held")
        (flags / "held").touch()
        later = pool.submit(answered, killed, "held")
        wait_until(lambda: "held_0_0" in process.stubs(killed.server))
        kill_front(killed)
        assert sample(killed, "loaded", "held") == 0  # the next front does not wait for the load
        (flags / "held").unlink()
        assert later.result() == "4 characters"


def test_a_step_shared_by_two_ensembles_stays_loaded_for_the_other(tmp_path: Path) -> None:
    """The budget is smaller than a model that is not served."""
    repository = heavy(write_toy(tmp_path / "repository"), "giant")
    with (repository / "giant/1/weights").open("wb") as file:
        file.truncate(1_000_000_000)
    write_model(repository, "twin", ensemble("toy_tokenize"))
    with started(repository, private=True, budget=200_000_000, models=["toy", "twin"]) as server:
        loaded = server.loaded
        assert loaded.served() == loaded.residency.names() == ["toy", "twin"]
        assert server.log.read_text().count("successfully loaded 'toy_tokenize'") == 1
        loaded.release("toy")
        assert loaded.residency.loaded_folders() == {"twin", "toy_tokenize"} == set(server.statistics())
        loaded.release("twin")
        assert server.statistics() == {} == server.stubs()
        assert server.fault() == ""
        loaded.load("twin")
        assert set(server.statistics()) == {"twin", "toy_tokenize"}
        loaded.load("toy")
        assert len(server.stubs()["toy_tokenize_0_0"]) == 1
