"""Load from NVIDIA's own perf_analyzer, a C++ program: on two cores a Python load generator would be what is measured.

The binary is the one of the tritonclient 2.51.0 wheel, kept apart from the environment; the two libraries that it
misses come from the nvidia-pytriton wheel. It must not know which model is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cache import packages
from hfx.triton.wheel import find_wheel

PIN = "tritonclient==2.51.0"
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
TIMEOUT_SECONDS = 40
TRIES = 3  # about once in a hundred runs it waits for ever, after all of its requests were answered
FEWEST_ROUNDS = 5  # of `concurrency` requests each: the first and the last are not counted


@dataclass(frozen=True)
class Load:
    """One measurement: requests a second, latencies in milliseconds."""

    requests_per_second: float
    p50: float
    p99: float
    requests: int


class PerfAnalyzer:
    """The program, ready to run against a server's gRPC port."""

    def __init__(self) -> None:
        self._folder = packages("perf_analyzer", (PIN,), _link_libraries)

    def measure(self, url: str, model: str, data: Path, concurrency: int, requests: int) -> Load:
        """At least `requests` requests for `model`, `concurrency` at a time; `data` is a file of `write_inputs`.

        Raises RuntimeError with what the program says when it fails, or when a request does.
        """
        count = max(requests, FEWEST_ROUNDS * concurrency)
        with tempfile.TemporaryDirectory(prefix="hfx-bench-") as folder:
            record = Path(folder) / "requests.json"
            self.run([
                "-m", model, "-i", "grpc", "-u", url, "--input-data", str(data), "--profile-export-file", str(record),
                "--concurrency-range", str(concurrency), "--request-count", str(count),
            ])  # fmt: skip
            requested = json.loads(record.read_text())["experiments"][0]["requests"]
        return summarize([(each["timestamp"], each["response_timestamps"][0]) for each in requested], concurrency)

    def run(self, arguments: Sequence[str]) -> None:
        """Run it with ARGUMENTS to its end. Raises RuntimeError with what it says when it fails."""
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self._folder / "libraries")}
        command = [str(self._folder / "bin" / "perf_analyzer"), *arguments]
        for _ in range(TRIES):
            with suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, env=environment
                )
                break
        else:
            raise RuntimeError(f"perf_analyzer did not end within {TIMEOUT_SECONDS} s, {TRIES} times")
        if done.returncode:
            raise RuntimeError(f"perf_analyzer ended with code {done.returncode}: {(done.stdout + done.stderr)[-600:]}")


def summarize(times: Sequence[tuple[int, int]], concurrency: int) -> Load:
    """The figures of requests (sent, answered; nanoseconds), without the first and the last `concurrency` of them.

    perf_analyzer's own rate divides by whole seconds when it sends a fixed number of requests.
    """
    ordered = sorted(times, key=lambda each: each[1])
    first, last = ordered[concurrency - 1][1], ordered[-concurrency - 1][1]
    steady = [(answered - sent) / 1e6 for sent, answered in ordered if first < answered <= last]
    cuts = statistics.quantiles(steady, n=100, method="inclusive")
    return Load(len(steady) * 1e9 / (last - first), statistics.median(steady), cuts[98], len(steady))


def write_inputs(requests: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """A file of requests, sent in turn: each maps an input's name to its one text."""
    path.write_text(json.dumps({"data": [{name: [value] for name, value in each.items()} for each in requests]}))
    return path


def _link_libraries(folder: Path) -> None:
    binary = folder / "bin" / "perf_analyzer"
    binary.chmod(0o755)
    libraries = folder / "libraries"
    libraries.mkdir()
    source = find_wheel().site_packages / "nvidia_pytriton.libs"
    for name, pattern in LIBRARIES.items():
        (libraries / name).symlink_to(next(source.glob(pattern)))
