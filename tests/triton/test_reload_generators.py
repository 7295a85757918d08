"""Generators that are published again while served, and deaths of their processes with and without requests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.cli.export_summary import next_command
from hfx.client import Client
from hfx.errors import HfxError
from hfx.exporter.steps import stamp
from hfx.manifest import hash_folder, read_manifest, write_manifest
from hfx.names import MANIFEST_FILE
from hfx.triton import EmbeddedServer
from hfx.triton.liveness import call
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.clients.repeated_calls import calling
from tests.rigs.machine.tiers import full
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import ServeProcess, infer, post, serving
from tests.rigs.servers.short_servers import started
from tests.rigs.servers.toy_models import write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]
PROMPT = "Once upon a time"
Hfx = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    export_zoo("stories-gpt2", folder, "stories", "int8", "onnxruntime", slots=8)
    return folder


@pytest.fixture
def repository(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "repository"))


def publish_another(repository: Path) -> None:
    """Publish the model with a tokenizer that reverses its 40 commonest words: other texts of the same tokens."""
    path = repository / "stories_stream" / "1" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    words = [word for word in vocabulary if word.startswith("Ġ") and word[1:].isalpha() and len(word) > 3]
    ids = [vocabulary[word] for word in words]
    vocabulary.update(zip(words, [*ids[1:], ids[0]], strict=True))
    path.unlink()
    path.write_text(json.dumps(tokenizer))
    manifest = read_manifest(repository / "stories" / MANIFEST_FILE)
    files = {k: v for folder in manifest.folders for k, v in hash_folder(repository / folder, repository).items()}
    files |= stamp(repository, "stories", files)
    write_manifest(replace(manifest, files=files), repository / "stories" / MANIFEST_FILE)


def whole(client: Client) -> str:
    return client.generate("stories", PROMPT, max_tokens=40, min_tokens=40).text


def streamed(client: Client) -> str:
    with client.stream("stories", PROMPT, max_tokens=40, min_tokens=40) as pieces:
        return "".join(piece.text for piece in pieces)


def test_each_text_and_each_stream_is_wholly_of_the_old_or_of_the_new(repository: Path) -> None:
    """The server states the hash of the model that it has, by which a batch job finds that this is another one."""
    with EmbeddedServer(repository, private=True) as server:
        before = {pid for pids in server.stubs().values() for pid in pids}
        with calling(server.grpc_url, [whole, streamed] * 2) as outcomes:
            with Client(server.grpc_url) as client:
                old = whole(client)
                stated = client.model_sha256("stories")
                wait_until(lambda: outcomes[old] >= 20)
                publish_another(repository)
                server.loaded.reload("stories")
                new = whole(client)
                assert streamed(client) == new != old
                assert client.model_sha256("stories") not in ("", stated)
            wait_until(lambda: outcomes[new] >= 20)
        assert set(outcomes) == {old, new}
        wait_until(lambda: not before & {pid for pids in server.stubs().values() for pid in pids}, "the old ones end")
        assert server.fault() == ""
        count = generated(server)
        with Client(server.grpc_url) as client:
            whole(client)
        wait_until(lambda: generated(server) >= count + 40, "the new engine counts on")  # others may not be counted yet
        assert server.stop()


def generated(server: EmbeddedServer) -> float:
    lines = call(server.metrics_url).decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith("hfx_generated_tokens_total"))


def test_an_idle_process_is_replaced_alone(repository: Path) -> None:
    with started(repository, private=True) as server, Client(server.grpc_url) as client:
        text, pid = whole(client), server.pid
        for killed in ("stories_stream", "stories"):
            wait_until(lambda: server.loaded.can_swap([killed]))  # noqa: B023 - an answer comes before it is counted
            os.kill(server.stubs()[f"{killed}_0_0"][-1], signal.SIGKILL)
            wait_until(server.deaths)
            assert server.loaded.can_swap([killed])
            server.loaded.swap([killed])
            assert whole(client) == streamed(client) == text
            assert server.pid == pid and server.fault() == ""


@pytest.mark.parametrize("killed", ["stories_stream", full("stories")])
def test_a_model_whose_dead_process_had_requests_cannot_be_swapped(repository: Path, killed: str) -> None:
    """Its requests would hang; when the whole server is killed they end at once."""
    ended: list[HfxError] = []

    def ask(url: str) -> None:
        with Client(url, retries=0) as client:
            try:
                while True:
                    (streamed if killed == "stories_stream" else whole)(client)
            except HfxError as error:
                ended.append(error)

    with EmbeddedServer(repository, private=True) as server:
        stub = server.stubs()[f"{killed}_0_0"][-1]
        count = server.log.parent / "open_requests" / str(stub)
        asking = [threading.Thread(target=ask, args=(server.grpc_url,)) for _ in range(4)]
        for thread in asking:
            thread.start()

        def is_stopped_with_requests() -> bool:
            os.kill(stub, signal.SIGSTOP)
            if not any(count.read_bytes()):
                os.kill(stub, signal.SIGCONT)
                return False
            return True

        wait_until(is_stopped_with_requests)
        os.kill(stub, signal.SIGKILL)
        wait_until(server.deaths)
        assert not server.loaded.can_swap([killed])
        server.kill()
        for thread in asking:
            thread.join()
        assert len(ended) == 4


# hfx serve, reload, remove


@pytest.fixture
def hfx(capsys: pytest.CaptureFixture[str]) -> Hfx:
    """A function that runs a command and returns its exit code and result."""

    def run(*words: object) -> tuple[int, dict[str, Any]]:
        code = main([*map(str, words), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def text_of(served: ServeProcess) -> str:
    return infer(served.http_url, "stories", PROMPT, max_tokens=20)


def test_a_watching_server_follows_publications_and_forced_removals(repository: Path, hfx: Hfx, tmp_path: Path) -> None:
    write_toy(repository)
    with serving(repository, "--watch") as served:
        old, server = text_of(served), served.server
        publish_another(repository)
        served.wait_for_words("stories is served as it is published now")
        assert text_of(served) != old
        assert hfx("reload", "--repository", repository) == (0, {"repository": str(repository), "models": []})
        assert hfx("remove", "stories", "--repository", repository)[0] == 2
        aside = shutil.copytree(repository, tmp_path / "aside")
        code, removed = hfx("remove", "stories", "--repository", repository, "--force")
        assert (code, sorted(removed["folders"])) == (0, ["stories", "stories_stream"])
        assert not list(repository.glob("stories*"))
        assert hfx("remove", "stories", "--repository", repository)[0] == 3
        status, _ = post(f"{served.http_url}/v2/models/stories/infer", {"inputs": []})
        assert status >= 400
        assert infer(served.http_url, "toy", "four") == "4 characters"
        copy_slowly(aside, repository, served)
        assert text_of(served) != old
        assert served.server == server
        served.running.terminate()
        assert served.end() == 0, served.words


def copy_slowly(source: Path, repository: Path, served: ServeProcess) -> None:
    """Copy the model so that its manifest is there before its last file; it does not load before then."""
    publish_another(source)
    shutil.copytree(source / "stories", repository / "stories")
    served.wait_for_words("The new version of stories can't be served")
    shutil.copytree(source / "stories_stream", repository / "stories_stream")
    wait_until(lambda: served.words.count("stories is served as it is published now") == 2)


def test_a_reload_tells_what_became_of_each_model(repository: Path, hfx: Hfx) -> None:
    assert hfx("reload", "--repository", repository)[0] == 5  # no server serves it
    with serving(repository) as served:
        old = text_of(served)
        assert next_command(repository, "stories") == f"Next: hfx reload stories --repository {repository}"
        code, result = hfx("reload", "stories", "--repository", repository)
        assert (code, [each["outcome"] for each in result["models"]]) == (0, ["unchanged"])
        publish_another(repository)
        graph = max((repository / "stories_stream" / "1").iterdir(), key=lambda path: path.stat().st_size)
        content = graph.read_bytes()
        graph.unlink()
        code, result = hfx("reload", "--repository", repository)
        assert (code, [each["outcome"] for each in result["models"]]) == (5, ["failed"])
        assert graph.name in result["models"][0]["reason"]
        assert text_of(served) == old
        graph.write_bytes(content)
        write_toy(repository)
        code, result = hfx("reload", "stories", "toy", "--repository", repository)
        assert (code, [each["outcome"] for each in result["models"]]) == (0, ["reloaded", "added"])
        assert text_of(served) != old
        assert infer(served.http_url, "toy", "four") == "4 characters"
        served.running.terminate()
        assert served.end() == 0, served.words
