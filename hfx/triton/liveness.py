"""The liveness probe: a cheap request over HTTP to each entry point of a running Triton server.

Triton calls a model ready whose Python process has died or hangs, so only an answer proves anything; a busy server is
never taken for a dead one. Standard library and Python 3.10 only, in one file: `liveness.py http://HOST:PORT
[METRICS_URL]` is also the container's health check (exit code 0 or 1, one line).
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import re
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

# What the Python backend says of a process that it has lost; no other answer is the end of a model.
LOST = re.compile(
    r"Stub process(?: '(?P<model>[^'\"\\]+)_\d+_\d+')?[^\"\\]*is not healthy\.?|Failed to obtain the health mutex\.?"
)
TEXT = "hi"
SETTINGS = {"max_tokens": 1, "timeout_ms": 10_000}  # of generators, where their configuration lists them
CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 10.0  # without an answer: then the model's progress is measured, and again after as long
LOOK_SECONDS = 1.0  # between two looks at the progress of a model that has not answered
FAILING_SECONDS = 2.0  # in which requests failed and nothing was done: requests before the probe fail one by one
BUSY_SHARE = 0.05  # of a core: a process that takes more is at work
MAX_BYTES = 1 << 20  # read of an answer
MAX_REFUSAL_BYTES = 1 << 14
SOCKET_SCHEME = "unix"
JSON_HEADERS = {"Content-Type": "application/json"}
STUB = "triton_python_backend_stub"
STUB_INSTANCE_ARGUMENT = 8  # the stub's argv: …, instance name such as NAME_tokenize_0_0, …
SERVER = "tritonserver"
# What reading the answers of something that is no Triton server, or of none at all, raises.
NO_ANSWER = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError)
# Of proc(5)'s stat, counted from the state: process group, user and system time.
GROUP_FIELD, CPU_FIELDS = 5 - 3, slice(14 - 3, 16 - 3)


@dataclass(frozen=True)
class Target:
    """A server's addresses: `http_url` is `http://HOST:PORT` or `socket_url(path)`; `metrics_url` may be empty."""

    http_url: str
    metrics_url: str = ""


@dataclass(frozen=True)
class Probe:
    """A cheap request to the entry point `model`; `workers` are the models that compute the answer."""

    model: str
    path: str
    body: bytes
    workers: tuple[str, ...]


@dataclass(frozen=True)
class Death:
    """Why a model can't answer: `models` are those whose processes are to be replaced, none: the whole server."""

    models: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Progress:
    """What a probe's workers have completed so far; `counts` is empty when the server gives none.

    `failures` are requests that failed, which is no progress: a stopped engine under streams fails one after the other.
    """

    counts: tuple[int | bytes, ...]
    failures: int
    cpu_seconds: float
    at: float

    def beyond(self, before: Progress) -> bool:
        """Whether anything was done since `before`."""
        worked = self.cpu_seconds - before.cpu_seconds
        return self.counts != before.counts or worked > BUSY_SHARE * (self.at - before.at)


# Making probes


def probes(target: Target) -> list[Probe]:
    """A probe for each entry point whose required inputs are all texts, by name; raises one of NO_ANSWER.

    Members of an ensemble with a probe are covered by it, and models that take other inputs by those that call them.
    The names are those of the statistics, which are open where the repository's index is not.
    """
    models = json.loads(call(f"{target.http_url}/v2/models/stats"))["model_stats"]
    names = sorted({model["name"] for model in models})
    configs = [json.loads(call(f"{target.http_url}{_path(name)}/config")) for name in names]
    configs = [config for config in configs if _takes_texts_only(config)]
    covered = {step for config in configs for step in _steps(config)}
    return [_probe(config) for config in configs if config["name"] not in covered]


def _takes_texts_only(config: Mapping[str, Any]) -> bool:
    required = [tensor["data_type"] for tensor in config.get("input", ()) if not tensor.get("optional")]
    return bool(required) and set(required) == {"TYPE_STRING"}


def _steps(config: Mapping[str, Any]) -> list[str]:
    return [step["model_name"] for step in config.get("ensemble_scheduling", {}).get("step", ())]


def _probe(config: Mapping[str, Any]) -> Probe:
    name = config["name"]
    engine = config.get("parameters", {}).get("engine", {}).get("string_value", "")  # of a generator's relay
    workers = tuple(_steps(config)) or (name, *filter(None, [engine]))
    decoupled = config.get("model_transaction_policy", {}).get("decoupled")
    path, body = ("generate", _generate(config)) if decoupled else ("infer", _infer(config))
    return Probe(name, f"{_path(name)}/{path}", json.dumps(body).encode(), workers)


def _generate(config: Mapping[str, Any]) -> dict[str, Any]:
    """The body for the generate endpoint: it adds shapes and types by itself."""
    values = {tensor["name"]: data for tensor, data in _values(config)}
    return {name: data[0] if len(data) == 1 else data for name, data in values.items()}


def _infer(config: Mapping[str, Any]) -> dict[str, Any]:
    batch = [1] if config.get("max_batch_size") else []
    inputs = [
        {
            "name": tensor["name"],
            "shape": [*batch, *_shape(tensor)],
            "datatype": "BYTES" if tensor["data_type"] == "TYPE_STRING" else "INT32",
            "data": data,
        }
        for tensor, data in _values(config)
    ]
    return {"inputs": inputs}


def _values(config: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], list[Any]]]:
    """The tensors to send with their elements: the required texts, and the settings that make an answer cheap."""
    values: list[tuple[Mapping[str, Any], list[Any]]] = []
    for tensor in config["input"]:
        if not tensor.get("optional"):
            values.append((tensor, [TEXT] * math.prod(_shape(tensor))))
        elif tensor["name"] in SETTINGS and tensor["data_type"] == "TYPE_INT32":
            values.append((tensor, [SETTINGS[tensor["name"]]]))
    return values


def _shape(tensor: Mapping[str, Any]) -> list[int]:
    return [max(1, int(length)) for length in tensor["dims"]]


def _path(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}"


# Sending a probe, and what its answer means


def send(target: Target, probe: Probe, patience: float = PATIENCE_SECONDS) -> Death | None:
    """Why the model is dead; None when it is not, or when the connection broke.

    Waits for the answer for as long as the model makes progress, so a server that is merely overloaded is alive.
    """
    connection = _connection(target.http_url, CONNECT_SECONDS)
    with closing(connection):
        try:
            connection.request("POST", probe.path, probe.body, JSON_HEADERS)
            if reason := _wait(connection, lambda: progress(target, probe), patience):
                return Death(probe.workers, f"{probe.model} {reason}")
            answer = connection.getresponse().read(MAX_BYTES).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return None
    lost = LOST.search(answer)
    if lost is None:
        return None
    return Death((lost["model"],) if lost["model"] else probe.workers, f"{probe.model} can't answer ({lost[0]})")


def _wait(connection: http.client.HTTPConnection, look: Callable[[], Progress], patience: float) -> str:
    """Wait for the answer; returns why none will come, or an empty string when one has begun to."""
    began = time.monotonic()
    last: Progress | None = None  # that was seen to be made
    while not _readable(connection, min(patience, LOOK_SECONDS)):
        now = look()
        if last is None or now.beyond(last):
            last = now
            continue
        idle = now.at - last.at
        if now.failures > last.failures and idle >= FAILING_SECONDS:
            return f"gave no answer for {idle:.1f} s in which requests failed and none succeeded"
        if idle >= patience and now.at - began >= 2 * patience:
            return f"gave no answer for {2 * patience:g} s and did nothing meanwhile"
    return ""


def _readable(connection: http.client.HTTPConnection, seconds: float) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def progress(target: Target, probe: Probe) -> Progress:
    """What the workers of `probe` have completed until now: requests, an engine's steps, and CPU time."""
    counts: list[int | bytes] = []
    failures = 0
    with suppress(*NO_ANSWER):
        for worker in probe.workers:
            statistics = json.loads(call(f"{target.http_url}{_path(worker)}/stats"))["model_stats"]
            counts.append(_requests(statistics, "success"))
            failures += _requests(statistics, "fail")
        if target.metrics_url:
            counts += _steps_made(call(target.metrics_url), probe.workers)
    return Progress(tuple(counts), failures, cpu_seconds(probe.workers if counts else ()), time.monotonic())


def _requests(versions: Sequence[Mapping[str, Any]], outcome: str) -> int:
    """The requests to all versions of a model with an `outcome`: success, fail."""
    return sum(int(version["inference_stats"][outcome]["count"]) for version in versions)


def _steps_made(metrics: bytes, workers: Sequence[str]) -> list[bytes]:
    labels = [f'"{name}"'.encode() for name in {*workers, *(worker.removesuffix("_stream") for worker in workers)}]
    lines = (line for line in metrics.splitlines() if line.startswith(b"hfx_steps_total"))
    return [line for line in lines if any(label in line for label in labels)]


def cpu_seconds(models: Sequence[str]) -> float:
    """CPU time of the visible processes that run `models`: their stubs, or the server without stubs.

    Without `models` it is that of every such process. Another server's are counted too: they can only add patience.
    """
    stubs: dict[str, float] = {}
    server = 0.0
    for process in processes():
        if instance := process.instance:
            model = model_of(instance)
            stubs[model] = stubs.get(model, 0.0) + process.cpu_seconds
        elif process.arguments[0].endswith(SERVER):
            server += process.cpu_seconds
    return sum(stubs.get(model, server) for model in models) if models else sum(stubs.values(), server)


def call(url: str, body: bytes | None = None, timeout: float = CONNECT_SECONDS) -> bytes:
    """The content at `url` (POST with a `body`), without proxies; OSError or HTTPException when there is none."""
    path = urlsplit(url).path
    with closing(_connection(url, timeout)) as connection:
        connection.request("GET" if body is None else "POST", path, body, {} if body is None else JSON_HEADERS)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != http.client.OK:
            said = content[:MAX_REFUSAL_BYTES].decode(errors="replace")
            raise http.client.HTTPException(f"{url} answers {answer.status}: {said}")
        return content


def socket_url(path: Path) -> str:
    """The URL of an HTTP server that listens at a Unix socket."""
    return f"{SOCKET_SCHEME}://{quote(str(path), safe='')}"


def _connection(url: str, timeout: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = _SocketConnection if parts.scheme == SOCKET_SCHEME else http.client.HTTPConnection
    return kind(parts.netloc, timeout=timeout)


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket whose quoted path is the host."""

    def connect(self) -> None:
        self.sock = connect_socket(Path(unquote(self.host)), self.timeout)


def connect_socket(path: Path, timeout: float | None) -> socket.socket:
    """A connection to the Unix socket at `path`, however long that is (the kernel takes 107 bytes)."""
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH)
    try:
        connection.settimeout(timeout)
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


# Processes


@dataclass(frozen=True)
class Process:
    """A process, with the fields of proc(5)'s stat from the state on."""

    pid: int
    stat: Sequence[str]

    @property
    def group(self) -> int:
        """The process id of the leader of its group."""
        return int(self.stat[GROUP_FIELD])

    @property
    def cpu_seconds(self) -> float:
        """CPU time that it has taken."""
        return sum(map(int, self.stat[CPU_FIELDS])) / os.sysconf("SC_CLK_TCK")

    @property
    def arguments(self) -> list[str]:
        """Its command line; one empty string once it has ended."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return [""]

    @property
    def instance(self) -> str:
        """The model instance that it runs, such as NAME_tokenize_0_0; an empty string for no Python stub."""
        arguments = self.arguments
        is_stub = len(arguments) > STUB_INSTANCE_ARGUMENT and arguments[0].endswith(STUB)
        return arguments[STUB_INSTANCE_ARGUMENT] if is_stub else ""


def model_of(instance: str) -> str:
    """The model of an instance such as NAME_tokenize_0_0."""
    return instance.rsplit("_", 2)[0]


def read_process(pid: int) -> Process | None:
    """The process `pid` as it is now; None when there is none."""
    try:
        return Process(pid, Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split())
    except OSError:
        return None


def processes() -> list[Process]:
    """Every process that this one can see."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [process for process in map(read_process, pids) if process is not None]


# The health check


def main(arguments: Sequence[str]) -> int:
    """Print one line about the server whose URLs are `arguments`; returns 0 when all of its models can answer."""
    parser = argparse.ArgumentParser(description="Whether the models of a Triton server can answer.")
    parser.add_argument("http_url", help="http://HOST:PORT")
    parser.add_argument("metrics_url", nargs="?", default="", help="http://HOST:PORT/metrics")
    target = Target(**vars(parser.parse_args(arguments)))
    try:
        requests = probes(target)
    except NO_ANSWER as error:
        print(f"unhealthy: no Triton server answers at {target.http_url} ({type(error).__name__}: {error})")
        return 1
    names = ", ".join(probe.model for probe in requests) or "no model takes a probe"
    with ThreadPoolExecutor(len(requests) or 1) as threads:
        deaths = list(filter(None, threads.map(lambda probe: send(target, probe), requests)))
    print(f"unhealthy: {'; '.join(death.reason for death in deaths)}" if deaths else f"healthy: {names}")
    return 1 if deaths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
