"""Requests that are expensive to read are refused by a real server, which answers others meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rigs.clients.dialect_calls import call
from tests.rigs.servers.generation_server import RECITAL
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton

MIB = 1 << 20


def peak_memory(pid: int) -> int:
    """Return the peak memory of a process, in MiB."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) >> 10


@pytest.mark.parametrize("model", [RECITAL, "sentiment-fp32"])
def test_a_text_of_megabytes_is_not_tokenized(dialects: ServeProcess, model: str) -> None:
    fronts = dialects.fronts
    status, _, answer = call(dialects, f"/models/{model}/tokenize", {"inputs": "a b " * MIB})
    assert (status, answer["error_type"]) == (413, "Validation")
    status, _, rows = call(dialects, f"/models/{model}/tokenize", {"inputs": ["a b " * 10_000, "a b"]})
    assert (status, len(rows)) == (200, 2)
    assert next(token["text"] for token in rows[0] if not token["special"]) == "a"
    assert dialects.fronts == fronts


def test_the_tokens_of_a_long_text_are_counted_as_the_model_reads_them(dialects: ServeProcess) -> None:
    def tokens(text: str) -> int:
        answer = call(dialects, "/v1/embeddings", {"model": "similar-int8", "input": text})[2]
        return int(answer["usage"]["prompt_tokens"])

    assert tokens("a b " * MIB) == tokens("a b " * 1000) > tokens("a b") > 0


@pytest.mark.parametrize(
    ("path", "head", "value"),
    [
        ("/v1/completions", b'{"model":"none",', b'"":0,'),
        ("/v2/models/none/infer", b'{"a":[', b'{"":0},'),
        ("/v1/chat/completions", b'{"messages":[', b"[],"),
    ],
)
def test_bodies_of_millions_of_values_are_refused_while_others_are_answered(
    dialects: ServeProcess, path: str, head: bytes, value: bytes
) -> None:
    fronts = dialects.fronts
    body = head + value * ((15 * MIB) // len(value))
    with ThreadPoolExecutor(12) as pool:
        floods = [pool.submit(call, dialects, path, body) for _ in range(12)]
        for _ in range(20):
            assert call(dialects, "/models/sentiment-fp32", {"inputs": "a lovely garden"})[0] == 200
        assert {flood.result()[0] for flood in floods} <= {413, 503}
    assert dialects.fronts == fronts
    assert peak_memory(fronts[0]) < 1000
