"""`python -m bench.front REPOSITORY MODEL`: Triton's HTTP port, and the same through the front, in turns.

The load is perf_analyzer's, over HTTP with binary tensors: a generator in Python would be what is measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from hfx.front.settings import Settings
from hfx.perf.tools.perf_analyzer import Program, fetch
from hfx.triton import EmbeddedServer
from hfx.triton.front import Front

TEXT = "The garden behind the house was lovely in the morning, and nobody had told us how long it would stay so."
COLUMNS = ("Inferences/Second", "p50 latency", "p99 latency")


def main() -> None:
    """Print a line for each way and number of callers: the medians over all rounds."""
    parser = argparse.ArgumentParser(prog="python -m bench.front")
    parser.add_argument("repository", type=Path)
    parser.add_argument("model")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    program = fetch()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with EmbeddedServer(options.repository) as server:
        front = Front("127.0.0.1", 0, Settings())
        front.start(server.http_url, server.metrics_url)
        urls = {"direct": server.http_url, "front": front.url}
        try:
            for callers in options.callers:
                _compare(program, options.model, urls, callers, options.rounds, options.requests)
                cost = _cost(program, options.model, front, callers, options.requests)
                print(f"{callers:3} callers: {cost:.0f} us of a core for a request, by the front", flush=True)
        finally:
            front.kill()


def _compare(program: Program, model: str, urls: dict[str, str], callers: int, rounds: int, requests: int) -> None:
    found: dict[str, list[list[float]]] = {way: [] for way in urls}
    for turn in range(rounds):
        for way in list(urls)[:: 1 if turn % 2 else -1]:
            found[way].append(_measure(program, model, urls[way], callers, requests))
    for way, rows in found.items():
        rate, p50, p99 = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{callers:3} callers, {way:6}: {rate:7.1f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms", flush=True)


def _cost(program: Program, model: str, front: Front, callers: int, requests: int) -> float:
    """Microseconds of a core that the front takes for a request: rates differ by what else runs, this does by less."""
    before, count = _seconds(front.pid), _requests(front.url)
    _measure(program, model, front.url, callers, 5 * requests)
    return 1e6 * (_seconds(front.pid) - before) / (_requests(front.url) - count)


def _seconds(pid: int) -> float:
    """The processor time of all threads of a process."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _requests(url: str) -> int:
    """The infer requests that a front has answered."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        int(float(line.split()[-1]))
        for line in lines
        if line.startswith("hfx_http_requests_total{") and "infer" in line
    )


def _measure(program: Program, model: str, url: str, callers: int, requests: int) -> list[float]:
    """Requests a second, and the 50th and 99th percentile of the latency in ms."""
    with tempfile.TemporaryDirectory() as folder:
        data, report = Path(folder) / "data.json", Path(folder) / "report.csv"
        data.write_text(json.dumps({"data": [{"text_input": [TEXT]}]}), encoding="utf-8")
        where = ["-m", model, "-u", url.rpartition("/")[2], "-i", "http", "--input-data", str(data), "-b", "1"]
        load = ["--concurrency-range", str(callers), "--max-threads", "8", "--measurement-mode", "count_windows"]
        # Windows need not agree, the rounds tell; --request-count hangs in 1 of 10 runs after its last request (2.51).
        load += ["--measurement-request-count", str(requests), "--stability-percentage", "999", "--max-trials", "3"]
        command = [str(program.path), *where, *load, "--shape", "text_input:1", "-f", str(report)]
        subprocess.run(command, env=program.environment, check=True, capture_output=True)
        with report.open(encoding="utf-8") as lines:
            [row] = csv.DictReader(lines)
    rate, *latencies = (float(row[name]) for name in COLUMNS)
    return [rate, *(latency / 1000 for latency in latencies)]


if __name__ == "__main__":
    main()
