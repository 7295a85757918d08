"""`python -m bench.dialects REPOSITORY`: what a dialect costs beside Triton's V2 protocol and gRPC, in turns.

Latency: one caller, one kept connection, the requests of all ways one after the other, medians. Tokens: 32 streams at a
time of one generator, over gRPC and over server-sent events, rounds in turns. The repository has the models that are
named by the options.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hfx.client import AsyncClient
from hfx.front.settings import Settings
from hfx.triton import EmbeddedServer
from hfx.triton.front import Front

TEXT = "The garden behind the house was lovely in the morning."
STREAMS = 32
TOKENS = 200


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(prog="python -m bench.dialects")
    parser.add_argument("repository", type=Path)
    parser.add_argument("--classifier", default="sentiment")
    parser.add_argument("--embedder", default="similar")
    parser.add_argument("--generator", default="stories")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with EmbeddedServer(options.repository) as server:
        front = Front("127.0.0.1", 0, Settings(repository=str(options.repository.absolute())))
        front.start(server.http_url, server.metrics_url)
        try:
            for ways in (_classifying(options.classifier), _embedding(options.embedder)):
                _latencies(front.url, front.pid, ways, options.requests)
            asyncio.run(_streams(server.grpc_url, front.url, options.generator, options.rounds))
        finally:
            front.kill()


def _classifying(model: str) -> dict[str, tuple[str, Any]]:
    """Path and body of each way to the labels of a text; all labels, where the way has a choice."""
    own = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [TEXT]}
    pipeline = {"name": "args", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
    return {
        "V2": (f"/v2/models/{model}/infer", {"inputs": [own]}),
        "huggingface": (f"/models/{model}", {"inputs": TEXT}),
        "text-embeddings-inference": (f"/models/{model}/predict", {"inputs": TEXT}),
        "mlserver": (f"/v2/models/{model}/infer", {"inputs": [pipeline]}),
    }


def _embedding(model: str) -> dict[str, tuple[str, Any]]:
    own = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [TEXT]}
    return {
        "V2": (f"/v2/models/{model}/infer", {"inputs": [own]}),
        "openai": ("/v1/embeddings", {"model": model, "input": TEXT, "encoding_format": "base64"}),
        "text-embeddings-inference": (f"/models/{model}/embed", {"inputs": TEXT}),
    }


def _latencies(url: str, front: int, ways: dict[str, tuple[str, Any]], requests: int) -> None:
    connection = http.client.HTTPConnection(url.rpartition("/")[2], timeout=60)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    busy: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(requests):
        for way, (path, body) in ways.items():
            content = json.dumps(body)
            computed, began = _cpu_seconds(front), time.perf_counter()
            connection.request("POST", path, content)
            answer = connection.getresponse()
            answer.read()
            seconds[way].append(time.perf_counter() - began)
            busy[way].append(_cpu_seconds(front) - computed)
            assert answer.status == 200, (way, answer.status)
    base = statistics.median(seconds["V2"])
    for way, values in seconds.items():
        p50, cpu = statistics.median(values), statistics.median(busy[way])
        waited = f"p50 {1000 * p50:6.2f} ms, {1000 * (p50 - base):+.2f} ms"
        print(f"{way:26} {waited}; the front's processor time {1000 * cpu:.2f} ms", flush=True)


def _cpu_seconds(pid: int) -> float:
    """What all threads of a process have computed so far; to the nanosecond, also on a busy machine."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def _streams(grpc: str, url: str, model: str, rounds: int) -> None:
    rates: dict[str, list[float]] = {"gRPC": [], "openai": [], "huggingface": []}
    host, port = url.rpartition("/")[2].split(":")
    async with AsyncClient(grpc, max_in_flight=STREAMS) as client:

        async def over_grpc() -> None:
            async with client.stream(model, "Anna was", max_tokens=TOKENS, min_tokens=TOKENS) as pieces:
                async for _ in pieces:
                    pass

        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "gRPC": over_grpc,
            "openai": lambda: _read_events(host, int(port), "/v1/completions", _completion(model)),
            "huggingface": lambda: _read_events(host, int(port), f"/models/{model}", _generation()),
        }
        for turn in range(rounds):
            for way in list(ways)[:: 1 if turn % 2 else -1]:
                began = time.perf_counter()
                await asyncio.gather(*(ways[way]() for _ in range(STREAMS)))
                rates[way].append(STREAMS * TOKENS / (time.perf_counter() - began))
    base = statistics.median(rates["gRPC"])
    for way, values in rates.items():
        rate = statistics.median(values)
        print(f"{way:26} {rate:7.0f} tokens/s at {STREAMS} streams, {100 * rate / base:.0f} %", flush=True)


def _completion(model: str) -> dict[str, Any]:
    return {"model": model, "prompt": "Anna was", "max_tokens": TOKENS, "min_tokens": TOKENS, "stream": True}


def _generation() -> dict[str, Any]:
    parameters = {"max_new_tokens": TOKENS, "min_tokens": TOKENS}
    return {"inputs": "Anna was", "parameters": parameters, "stream": True}


async def _read_events(host: str, port: int, path: str, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + content)
    assert b" 200 " in await reader.readline()
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
    writer.close()


if __name__ == "__main__":
    main()
