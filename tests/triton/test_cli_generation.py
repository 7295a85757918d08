"""`hfx infer` and `hfx verify` on generators behind a real Triton: the texts of --local, and clean ends.

Commands that are interrupted run as processes of their own; all others run in this process, which is faster.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest

from hfx.cli import main
from hfx.client import Client
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import metrics
from tests.rigs.servers.serve_process import HFX

pytestmark = pytest.mark.triton

MODELS = ("stories", "summaries")
ENDLESS = ["--long", "chunk", "--num-beams", "4"]  # of a document: far longer than it takes to interrupt it
PATIENCE = 60
CANCELLED, USED = "hfx_requests_cancelled_total", "hfx_slots_used"

Run = subprocess.CompletedProcess[str]
Infer = Callable[..., Run]


@contextmanager
def stdin(given: str) -> Iterator[None]:
    """Have the file descriptor 0 read `given`."""
    saved = os.dup(0)
    with TemporaryFile() as file:
        file.write(given.encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
    try:
        yield
    finally:
        os.dup2(saved, 0)
        os.close(saved)


def hfx_here(*words: str, given: str = "") -> Run:
    """Run `hfx WORDS` in this process, with the given stdin."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), stdin(given):
        code = main(words)
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, code, printed, said)


@pytest.fixture
def infer(writing_server: EmbeddedServer) -> Infer:
    """A function that runs `hfx infer WORDS` through the server."""
    return lambda *words, **given: hfx_here("infer", *words, "--url", writing_server.grpc_url, **given)


@pytest.fixture
def local(writers: Path) -> Infer:
    """A function that runs `hfx infer WORDS --local`."""
    return lambda *words, **given: hfx_here("infer", *words, "--local", "--repository", str(writers), **given)


def texts_of(name: str, count: int) -> list[str]:
    if name == "stories":
        return [example.prompt for example in zoo.heldout("stories", count)]
    return [example.prompt + example.continuation for example in zoo.heldout("summaries", count)]


def rows(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.stdout.splitlines()]


def measured(writing_server: EmbeddedServer, metric: str) -> float:
    """Return a metric of the summarizer."""
    return metrics(writing_server, "summaries").get(metric, 0.0)


@pytest.fixture(scope="module")
def document() -> str:
    """A line that keeps the engine busy."""
    return " ".join(texts_of("summaries", 600)) * 3 + "\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stories", ["--max-tokens", "30", "--logprobs", "2"]),
        ("stories", ["--max-tokens", "5", "--prompt-logprobs", "2"]),
        ("stories", ["--sample", "--temperature", "0.9", "--top-p", "0.95", "--seed", "18446744073709551615"]),
        ("summaries", ["--num-beams", "4", "--length-penalty", "2", "--no-repeat-ngram-size", "3"]),
        ("summaries", ["--long", "chunk", "--overlap", "1", "--stop", "the end", "--stop", "never"]),
    ],
    ids=["greedy", "prompts", "sampling", "beams", "chunks"],
)
def test_a_server_gives_the_same_texts_as_local_generation(
    name: str, words: list[str], infer: Infer, local: Infer
) -> None:
    texts = texts_of(name, 3)
    through, here = (run("--json", name, *texts, *words) for run in (infer, local))
    assert (through.returncode, here.returncode) == (0, 0), through.stderr + here.stderr
    found, expected = (json.loads(run.stdout) for run in (through, here))
    assert found["model"] == expected["model"] == name
    for one, other in zip(found["results"], expected["results"], strict=True):
        for floats in ("output_log_probs", "token_log_probs", "prompt_log_probs", "prompt_token_log_probs"):
            assert np.ravel(one.pop(floats, [])) == pytest.approx(np.ravel(other.pop(floats, [])), abs=1e-5)
        assert one == other


@pytest.mark.parametrize("name", MODELS)
def test_the_pieces_of_a_stream_join_to_the_whole_text(
    name: str, infer: Infer, local: Infer, writing_server: EmbeddedServer
) -> None:
    words = [name, *texts_of(name, 2), "--max-tokens", "25"]
    whole = infer(*words)
    assert whole.returncode == 0, whole.stderr
    over_http = hfx_here("infer", *words, "--stream", "--url", writing_server.http_url)
    streams = (infer(*words, "--stream"), local(*words, "--stream"), over_http)
    assert [stream.stdout for stream in streams] == [whole.stdout] * 3
    for run in (infer, local):
        parts = rows(run(*words, "--stream", "--json"))
        texts = ["".join(part["text_output"] for part in parts if part["index"] == index) for index in (0, 1)]
        assert "".join(f"{text}\n" for text in texts) == whole.stdout
        assert [part["index"] for part in parts if "finish_reason" in part] == [0, 1]
        parts = rows(run(*words, "--stream", "--json", "--num-beams", "1", "--logprobs", "0"))
        assert parts
        tokens = [token for part in parts for token in part.get("token_ids", [])]
        assert len(tokens) == sum(part.get("output_tokens", 0) for part in parts)


def test_every_json_line_has_its_own_settings(infer: Infer, local: Infer) -> None:
    text = texts_of("summaries", 1)[0]
    given = [
        {"text_input": text},
        {"text_input": text, "max_tokens": 3, "id": "short"},
        {"text_input": text, "num_beams": 4, "early_stopping": "never", "length_penalty": 2, "id": 3},
        {"text_input": text, "num_beams": 1, "temperature": 1, "seed": 5, "stop_words": ["a", "b"]},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in given)
    through = infer("summaries", "--jsonl", "--max-tokens", "12", given=lines)
    assert (through.returncode, through.stderr) == (0, "")
    assert rows(through) == rows(local("summaries", "--jsonl", "--max-tokens", "12", given=lines))
    assert [row.get("id") for row in rows(through)] == [None, "short", 3, None]
    assert rows(through)[1]["output_tokens"] == 3


def test_a_bad_json_line_is_an_error_and_the_others_are_answered(infer: Infer, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    good = b'{"text_input": "Anna was", "max_tokens": 4}\n'
    bad = [b"Anna was\n", b'{"text_input": "\xff"}\n', b'{"text_input": "a", "max_token": 4}\n',
           b'{"text_input": "a", "temperature": -1}\n', b'{"text_input": null}\n',
           b'{"text_input": "' + b"Anna " * 1_000_000 + b'"}\n']  # fmt: skip
    file.write_bytes(good + b"".join(line + b"\n" + good for line in bad))
    found = infer("stories", "--jsonl", "--input", str(file))
    answers = rows(found)
    assert [sorted(row) == ["error"] for row in answers] == [False, *[True, False] * len(bad)]
    assert len({row["text_output"] for row in answers[::2]}) == 1
    errors = [row["error"] for row in answers[1::2]]
    assert [error["message"].partition(":")[0] for error in errors] == [f"Line {3 * n + 2}" for n in range(len(bad))]
    assert found.returncode == errors[0]["exit_code"] == 2
    assert found.stderr.startswith("Error: 6 of 13 lines")


def test_an_answer_comes_before_the_next_line_is_written(writing_server: EmbeddedServer) -> None:
    words = [*HFX, "infer", "stories", "--jsonl", "--max-tokens", "3", "--url", writing_server.grpc_url]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        for number in range(3):
            process.stdin.write(json.dumps({"text_input": "Anna was", "id": number}) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == number
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_empty_input_prints_nothing_and_succeeds(infer: Infer) -> None:
    for words in (["-"], ["--jsonl"], ["-", "--stream"]):
        done = infer("stories", *words, given="")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("words", "protocol"), [("--stream", "grpc"), ("--json", "grpc"), ("--stream", "http")])
def test_ctrl_c_cancels_on_the_server(
    words: str, protocol: str, document: str, writing_server: EmbeddedServer, tmp_path: Path
) -> None:
    before = measured(writing_server, CANCELLED)
    file = tmp_path / "document.txt"
    file.write_text(document)
    url = writing_server.grpc_url if protocol == "grpc" else writing_server.http_url
    command = [*HFX, "infer", "summaries", "--input", str(file), *ENDLESS, words, "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        if words == "--stream":  # over HTTP, Triton sees a leaving reader only after its first piece
            assert process.stdout and process.stdout.read(1)
        wait_until(lambda: measured(writing_server, USED) > 0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert (process.returncode, said.splitlines()[-1]) == (130, b"Error: Interrupted.")
    wait_until(lambda: measured(writing_server, CANCELLED) > before and measured(writing_server, USED) == 0)


def test_a_closed_output_pipe_cancels_the_request_quietly(document: str, writing_server: EmbeddedServer) -> None:
    before = measured(writing_server, CANCELLED)
    line = f'"$@" infer summaries - --stream {" ".join(ENDLESS)} --url {writing_server.grpc_url} | head -c 1'
    done = subprocess.run(
        ["bash", "-c", line, "-", *HFX], input=document, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, len(done.stdout), done.stderr) == (0, 1, "")
    wait_until(lambda: measured(writing_server, CANCELLED) > before and measured(writing_server, USED) == 0)


def test_a_timeout_ends_the_request_with_request_timeout(document: str, infer: Infer, local: Infer) -> None:
    for run in (infer, local):
        done = run("summaries", "-", *ENDLESS, "--timeout", "0.2", "--json", given=document)
        assert done.returncode == 5
        assert json.loads(done.stdout)["error"]["type"] == "RequestTimeout"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["storys", "x"], 3, "stories"),
        (["stories", "x", "--temperature", "-1"], 5, "temperature"),
        (["stories", "x", "--num-return-sequences", "2"], 2, "num_return_sequences"),
        (["stories", "Anna " * 20_000], 5, "512"),
        (["stories", "x", "--stream", "--temperature", "-1"], 5, "temperature"),
    ],
    ids=range(5),
)
def test_an_invalid_request_prints_its_reason_and_exit_code(
    words: list[str], code: int, said: str, infer: Infer
) -> None:
    done = infer(*words)
    assert (done.returncode, done.stdout.strip()) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", MODELS)
def test_verify_through_a_server_finds_the_same_as_locally_but_the_kernels(
    name: str, writers: Path, writing_server: EmbeddedServer, tmp_path: Path
) -> None:
    with Client(writing_server.grpc_url) as client:
        assert name in client.models()
    words = ["verify", name, "--repository", str(writers), "--json"]
    paths = [tmp_path / "through.json", tmp_path / "here.json"]
    through = hfx_here(*words, "--url", writing_server.grpc_url, "--report", str(paths[0]))
    here = hfx_here(*words, "--report", str(paths[1]))
    assert (through.returncode, here.returncode) == (0, 0), through.stderr
    assert json.loads(through.stdout)["parity"] == json.loads(here.stdout)["parity"]
    reports = [json.loads(path.read_text()) for path in paths]
    differ = {part for part in reports[0] if reports[0][part] != reports[1][part]}
    assert differ == {"verified", "kernels", "times"}
    assert "native_kernels" in reports[1]["kernels"] and isinstance(reports[0]["kernels"], str)
