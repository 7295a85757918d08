"""Generation by the client library: a real Triton, a trained model, gRPC and HTTP, blocking and asyncio."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.client import AsyncClient, Client, Generation, GenerationSettings, TruncationWarning
from hfx.errors import RequestRefused, ServerError
from hfx.local.generator import LocalGenerator
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import metrics

pytestmark = pytest.mark.triton

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "client.md"
MODEL = "stories"
TEXT = "Anna was"
CANCELLED = "hfx_requests_cancelled_total"
LONG = GenerationSettings(max_tokens=400, min_tokens=400, num_beams=1)


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, writing_server: EmbeddedServer) -> str:
    return writing_server.grpc_url if request.param == "grpc" else writing_server.http_url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, timeout=60) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(writers: Path) -> dict[str, Generation]:
    """The texts of the engine in this process."""
    texts = [example.prompt for example in zoo.heldout("stories", 12)]
    with LocalGenerator.open(writers, MODEL) as local:
        return {text: as_generation(local.infer({"text_input": text})) for text in texts}


def as_generation(answer: dict[str, object]) -> Generation:
    names = ("text_output", "finish_reason", "input_tokens", "output_tokens", "truncated_tokens")
    return Generation(*(answer[name] for name in names))  # type: ignore[arg-type]


def figure(server: EmbeddedServer, name: str) -> float:
    return metrics(server, MODEL).get(name, 0.0)


def test_texts_are_those_of_the_engine_in_process(client: Client, expected: dict[str, Generation]) -> None:
    assert client.generate(MODEL, list(expected)) == list(expected.values())


def test_streams_are_those_of_the_engine_in_process(client: Client, expected: dict[str, Generation]) -> None:
    for text, generation in expected.items():
        with client.stream(MODEL, text) as stream:
            pieces = list(stream)
        assert "".join(piece.text for piece in pieces) == generation.text
        assert [bool(piece.finish_reason) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert stream.result == generation


def test_asyncio_tasks_get_the_texts_of_the_engine(url: str, expected: dict[str, Generation]) -> None:
    async def ask() -> tuple[list[Generation], list[Generation]]:
        async with AsyncClient(url) as client:
            whole = await client.generate(MODEL, list(expected))
            return whole, await asyncio.gather(*(read(client, text) for text in expected))

    async def read(client: AsyncClient, text: str) -> Generation:
        async with client.stream(MODEL, text) as stream:
            async for _ in stream:
                pass
        return stream.result

    assert asyncio.run(ask()) == (list(expected.values()),) * 2


def test_settings_reach_the_engine(client: Client) -> None:
    settings = GenerationSettings(max_tokens=12, do_sample=True, temperature=1.5, seed=2**64 - 1)
    first = client.generate(MODEL, TEXT, settings)
    assert client.generate(MODEL, TEXT, settings) == first
    assert client.generate(MODEL, TEXT, settings, seed=3) != first
    assert first.output_tokens == 12 and first.finish_reason == "length"
    with client.stream(MODEL, TEXT, settings) as stream:
        assert len(list(stream)) >= 1
    assert stream.result == first


def test_every_generation_setting_is_accepted(client: Client) -> None:
    beams = GenerationSettings(
        max_tokens=9, min_tokens=2, num_beams=3, do_sample=False, stop_words=["xyz", "zyx"], repetition_penalty=1.1,
        no_repeat_ngram_size=3, length_penalty=1.2, early_stopping="never", long="truncate",
    )  # fmt: skip
    assert client.generate(MODEL, TEXT, beams).output_tokens >= 2
    sampled = client.generate(
        MODEL, TEXT, max_tokens=9, do_sample=True, top_k=20, top_p=0.9, min_p=0.01, seed=0, return_log_probs=True
    )
    assert len(sampled.log_probs) == sampled.output_tokens
    assert all(log_prob <= 0 for log_prob in sampled.log_probs)


@pytest.mark.parametrize("model", ["stories", "summaries", "notes"])
def test_log_probabilities_are_the_same_whole_and_streamed(client: Client, model: str) -> None:
    found = client.generate(model, TEXT, max_tokens=9, num_beams=1, logprobs=3)
    plain = client.generate(model, TEXT, max_tokens=9, num_beams=1, return_log_probs=True)
    assert (found.text, found.log_probs, plain.tokens) == (plain.text, plain.log_probs, ())
    assert tuple(token.logprob for token in found.tokens) == found.log_probs
    assert len(found.tokens) == found.output_tokens and {len(token.top) for token in found.tokens} == {3}
    with client.stream(model, TEXT, max_tokens=9, num_beams=1, logprobs=3) as stream:
        assert sum(len(piece.tokens) for piece in stream) == found.output_tokens
    assert stream.result == found
    one = client.generate(model, TEXT, max_tokens=1, min_tokens=1, num_beams=1, logprobs=0)
    assert [token.top for token in one.tokens] == [()]
    with pytest.raises(RequestRefused, match="logprobs is 2"):
        client.generate(model, TEXT, num_beams=2, logprobs=2)


def test_a_long_text_is_truncated_with_a_warning_or_read_in_chunks(client: Client) -> None:
    document = " ".join(example.prompt for example in zoo.heldout("summaries", 40))
    with pytest.warns(TruncationWarning, match="'summaries'"):
        cut = client.summarize("summaries", document, max_tokens=20)
    assert cut.truncated_tokens > 0
    chunked = client.summarize("summaries", document, long="chunk", max_tokens=20)
    assert chunked.truncated_tokens == 0 and chunked.input_tokens > cut.input_tokens
    with pytest.raises(RequestRefused, match=r"tokens"):
        client.summarize("summaries", document, long="error")


def test_a_stream_that_its_reader_abandons_frees_its_slot(client: Client, writing_server: EmbeddedServer) -> None:
    before = figure(writing_server, CANCELLED)
    for _ in range(10):
        with client.stream(MODEL, TEXT, LONG) as stream:
            next(stream)
    # On a busy machine, some streams end before their reader disconnects.
    wait_until(
        lambda: figure(writing_server, CANCELLED) > before and figure(writing_server, "hfx_slots_used") == 0,
        "slots are free",
    )


def test_the_examples_of_the_documentation_run(
    writing_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    text = DOCUMENTATION.read_text(encoding="utf-8").replace("127.0.0.1:8001", writing_server.grpc_url)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 6
    known: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENTATION), "exec"), known)
    assert "'sentiment', 'stories', 'summaries'" in capsys.readouterr().out


def ends_with_its_engine(server: EmbeddedServer, client: Client) -> bool:
    """Return whether a stream whose engine is killed soon ends with an error; False if it had already ended."""
    pids = server.stubs()[f"{MODEL}_stream_0_0"]  # takes time, in which a stream would end
    stream = client.stream(MODEL, TEXT, LONG)
    next(stream)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    try:
        list(stream)
    except ServerError:
        assert time.monotonic() - began < 10
        return True
    return False


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_dead_engine_does_not_hang_its_readers(protocol: str, writers: Path) -> None:
    with EmbeddedServer(writers, models=(MODEL,)) as server:
        url = server.grpc_url if protocol == "grpc" else server.http_url
        with Client(url, idle_timeout=1.0, timeout=30, retries=0) as client:
            while not ends_with_its_engine(server, client):
                server.restart()
            with pytest.raises(ServerError):
                client.generate(MODEL, TEXT, timeout=5)
