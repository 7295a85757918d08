"""`hfx serve` on ARM64 with the embedded Triton: the answers of x86-64, reloads, kills, processors without kernels."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hfx.native.build import TARGETS
from tests.arm64.conftest import Machine
from tests.rigs.servers.serve_process import ServeProcess, command_line, infer, post, serving

ONE_HOP, STEPS = (), ("--steps", "python")
TEXTS = ("a wonderful happy day", "Oscar met Boris on the way home", "x", "it was sad " * 30)
SECONDS = 300.0


@contextmanager
def emulated(machine: Machine, repository: Path, *options: str) -> Iterator[ServeProcess]:
    """`hfx serve` on `machine`, which ends itself: processes of an emulated one that is killed would go on."""
    with serving(repository, *options, hfx=machine.command("hfx")) as running:
        try:
            yield running
        finally:
            print(running.words)  # pytest shows it where a test failed
            running.running.terminate()
            running.end()


@pytest.fixture(scope="module", params=[ONE_HOP, STEPS], ids=["one hop", "Python steps"])
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture(scope="module")
def served(machine: Machine, repository: Path, options: tuple[str, ...]) -> Iterator[ServeProcess]:
    with emulated(machine, repository, *options) as running:
        yield running


def answers(url: str) -> list[Any]:
    """Return what the models answer: labels and scores, embeddings, and greedy, searched and sampled tokens."""
    outputs = []
    for model in ("sentiment", "similar"):
        inputs = [{"name": "text_input", "shape": [len(TEXTS), 1], "datatype": "BYTES", "data": list(TEXTS)}]
        status, answer = post(f"{url}/v2/models/{model}/infer", {"inputs": inputs}, SECONDS)
        assert status == 200, answer
        outputs.append(answer["outputs"])
    for settings in ({"logprobs": 2}, {"num_beams": 3}, {"logprobs": 2, "do_sample": True, "seed": 7}):
        body = {"text_input": "Once upon a time", "max_tokens": 12, **settings}
        status, answer = post(f"{url}/v2/models/stories/generate", body, SECONDS)
        assert status == 200, answer
        outputs.append({key: value for key, value in answer.items() if key != "id"})
    return outputs


def pieces(url: str) -> list[str]:
    """Return the texts of a stream of OpenAI's completions."""
    body = json.dumps({"model": "stories", "prompt": "Once upon", "max_tokens": 12, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        lines = [line.decode() for line in answer if line.startswith(b"data: {")]
    return [json.loads(line[6:])["choices"][0]["text"] for line in lines]


def test_answers_and_streams_are_those_of_x86(served: ServeProcess, repository: Path, options: tuple[str, ...]) -> None:
    with serving(repository, *options) as other:
        wanted, text = answers(other.http_url), "".join(pieces(other.http_url))
    for answer, other_answer in zip(answers(served.http_url), wanted, strict=True):
        assert json.dumps(answer) == json.dumps(other_answer)  # pytest would compare the lists for minutes
    streamed = pieces(served.http_url)
    assert "".join(streamed) == text and len(streamed) > 1


def test_the_libraries_for_arm64_are_loaded(served: ServeProcess, options: tuple[str, ...]) -> None:
    maps = Path(f"/proc/{served.server}/maps").read_text()
    assert ("libtriton_hfx_" in maps) is (options == ONE_HOP)
    engine = Path(f"/proc/{served.stub('stories_stream')}/maps").read_text()
    assert f"/{TARGETS['aarch64'].library}" in engine and f"/{TARGETS['x86_64'].library}\n" not in engine


def test_a_killed_server_and_a_killed_engine_are_replaced(served: ServeProcess) -> None:
    before = answers(served.http_url)
    died = " (killed by signal 9); serving again after"
    os.kill(served.server, signal.SIGKILL)
    served.wait_for_words(died, SECONDS)
    os.kill(served.stub("stories_stream"), signal.SIGKILL)
    served.wait_for_words(f"the Python process of stories_stream died{died}", SECONDS)
    assert json.dumps(answers(served.http_url)) == json.dumps(before)


def test_the_command_line_there_answers_like_that_here(
    machine: Machine, repository: Path, served: ServeProcess
) -> None:
    here = infer(served.http_url, "sentiment", TEXTS[0])
    there = machine.run("hfx", "infer", "sentiment", TEXTS[0], "--url", served.http_url)
    local = machine.run("hfx", "infer", "sentiment", TEXTS[0], "--local", "--repository", repository)
    assert there == local and there.startswith(here)


def test_a_model_is_loaded_again(machine: Machine, repository: Path, tmp_path: Path) -> None:
    changing = tmp_path / "models"
    shutil.copytree(repository, changing, ignore=lambda folder, names: [n for n in names if n.startswith("stories")])
    with emulated(machine, changing) as running:
        before = infer(running.http_url, "sentiment", TEXTS[0])
        said = machine.run("hfx", "reload", "sentiment", "--repository", changing)
        assert "sentiment" in said
        assert infer(running.http_url, "sentiment", TEXTS[0]) == before, said + running.words


def test_a_processor_without_dot_products_serves_by_onnxruntime(machine: Machine, repository: Path) -> None:
    old = Machine({"QEMU_CPU": "cortex-a72"})
    with emulated(old, repository) as running:
        assert infer(running.http_url, "sentiment", TEXTS[0]) == "positive"
        assert infer(running.http_url, "stories", "Once upon", max_tokens=3)
        option = next(word for word in command_line(running.server) if word.startswith(b"--model-repository="))
        log = Path(option.decode().partition("=")[2]).parent / "triton.log"
        assert log.read_text().count("no dot products") >= 2  # the encoder and the generator
