"""`python -m bench.batch_api REPOSITORY`: what a batch of OpenAI's API costs the interactive requests beside it.

Requests for short texts arrive at a constant rate over HTTP, alone and beside a batch, in turns. A latency counts from
the time at which the request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from hfx.batch.api.process import BatchProcess
from hfx.batch.api.settings import ApiSettings
from hfx.front.settings import Settings
from hfx.triton import EmbeddedServer
from hfx.triton.front import Front

MIB = 1 << 20
PATH = "/v1/completions"
LINES = 50_000


def main() -> None:
    """Print a line for each turn."""
    parser = argparse.ArgumentParser(prog="python -m bench.batch_api")
    parser.add_argument("repository", type=Path)
    parser.add_argument("--generator", default="stories")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=4, help="--batch-requests")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(options.repository) as server:
        api = ApiSettings(folder, 1024 * MIB, 200 * MIB, LINES, MIB, options.parallel)
        process = BatchProcess(api, print)
        front = Front(
            "127.0.0.1",
            0,
            Settings(
                repository=str(options.repository.absolute()),
                batches=process.url,
                background=process.front.fileno(),
                background_requests=options.parallel,
            ),
        )
        front.start(server.http_url, server.metrics_url)
        process.start()
        try:
            asyncio.run(_compare(front.url, options))
        finally:
            process.stop()
            front.kill()


async def _compare(url: str, options: argparse.Namespace) -> None:
    body = {"model": options.generator, "prompt": "Anna was", "max_tokens": 32, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await _load(client, body, 5.0, 2.0)
        for _ in range(options.rounds):
            await _report("alone", await _load(client, body, options.rate, options.seconds), 0, options.seconds)
            batch = await _begin(client, body)
            before = await _done(client, batch)
            times = await _load(client, body, options.rate, options.seconds)
            await _report("beside a batch", times, await _done(client, batch) - before, options.seconds)
            await client.post(f"/v1/batches/{batch}/cancel")
        batch = await _begin(client, body)
        before = await _done(client, batch)
        await asyncio.sleep(options.seconds)
        print(f"batch alone: {(await _done(client, batch) - before) / options.seconds:.1f} lines/s", flush=True)


async def _report(name: str, times: list[float], lines: int, seconds: float) -> None:
    p50, p99 = (1000 * float(np.percentile(times, rank)) for rank in (50, 99))
    print(f"{name:15}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, batch {lines / seconds:.1f} lines/s", flush=True)


async def _load(client: httpx.AsyncClient, body: dict[str, Any], rate: float, seconds: float) -> list[float]:
    """The latencies of requests at a constant rate, in seconds."""
    began = time.perf_counter()

    async def ask(due: float) -> float:
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        answer = await client.post(PATH, json=body)
        answer.raise_for_status()
        return time.perf_counter() - began - due

    return await asyncio.gather(*(ask(number / rate) for number in range(int(rate * seconds))))


async def _begin(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """The id of a batch that has begun to answer."""
    lines = ({"custom_id": f"{n}", "method": "POST", "url": PATH, "body": body} for n in range(LINES))
    content = "\n".join(map(json.dumps, lines)).encode()
    file = await client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    asked = {"input_file_id": file.json()["id"], "endpoint": PATH, "completion_window": "24h"}
    batch = str((await client.post("/v1/batches", json=asked)).json()["id"])
    while not await _done(client, batch):
        await asyncio.sleep(0.1)
    return batch


async def _done(client: httpx.AsyncClient, batch: str) -> int:
    return int((await client.get(f"/v1/batches/{batch}")).json()["request_counts"]["completed"])


if __name__ == "__main__":
    main()
