"""Liveness probes: making the cheapest request to each entry point, sending it, and interpreting the answer."""

from __future__ import annotations

import http.client
import json
import math
import re
import select
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from .calls import CONNECT_SECONDS, JSON_HEADERS, NO_ANSWER, call, connect
from .process_table import cpu_seconds

TEXT = "hi"
MASKED = "hi [MASK] <mask> <special1>"  # for models that fill masks, with the mask of each tokenizer
SETTINGS = {"max_tokens": 1, "timeout_ms": 10_000}  # sent to models whose configuration has these inputs


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


def probes(target: Target, unloaded: Sequence[Mapping[str, Any]] = ()) -> list[Probe]:
    """Return a probe for each entry point whose required inputs are all texts, by name. Raises one of NO_ANSWER.

    `unloaded` has the configurations of models that are not in memory. Until they are loaded, on demand, Triton refuses
    their probes.

    The probe of an ensemble covers its members, and models with other inputs are covered by the models that call them.
    The names come from the statistics, which are available even if the repository's index is closed.
    """
    models = json.loads(call(f"{target.http_url}/v2/models/stats"))["model_stats"]
    names = sorted({model["name"] for model in models})
    configs = [json.loads(call(f"{target.http_url}{model_path(name)}/config")) for name in names]
    configs = [config for config in [*configs, *unloaded] if _takes_texts_only(config)]
    covered = {step for config in configs for step in _steps(config)}
    return [_probe(config) for config in configs if config["name"] not in covered]


def _takes_texts_only(config: Mapping[str, Any]) -> bool:
    required = [tensor["data_type"] for tensor in config.get("input", ()) if not tensor.get("optional")]
    return bool(required) and set(required) == {"TYPE_STRING"}


def _steps(config: Mapping[str, Any]) -> list[str]:
    return [step["model_name"] for step in config.get("ensemble_scheduling", {}).get("step", ())]


def _probe(config: Mapping[str, Any]) -> Probe:
    name = config["name"]
    engine = config.get("parameters", {}).get("engine", {}).get("string_value", "")  # set in a generator's relay
    workers = tuple(_steps(config)) or (name, *filter(None, [engine]))
    if config.get("model_transaction_policy", {}).get("decoupled"):  # this endpoint adds shapes and types by itself
        path = "generate"
        body = {tensor["name"]: data[0] if len(data) == 1 else data for tensor, data in _values(config)}
    else:
        path, batch = "infer", [1] if config.get("max_batch_size") else []
        inputs = [
            {
                "name": tensor["name"],
                "shape": [*batch, *_shape(tensor)],
                "datatype": "BYTES" if tensor["data_type"] == "TYPE_STRING" else "INT32",
                "data": data,
            }
            for tensor, data in _values(config)
        ]
        body = {"inputs": inputs}
    return Probe(name, f"{model_path(name)}/{path}", json.dumps(body).encode(), workers)


def _values(config: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], list[Any]]]:
    """Return the tensors to send, with their elements: the required texts, and settings that make an answer cheap."""
    values: list[tuple[Mapping[str, Any], list[Any]]] = []
    fills = any(tensor["name"] == "fills" for tensor in config.get("output", ()))
    for tensor in config["input"]:
        if not tensor.get("optional"):
            values.append((tensor, [MASKED if fills else TEXT] * math.prod(_shape(tensor))))
        elif tensor["name"] in SETTINGS and tensor["data_type"] == "TYPE_INT32":
            values.append((tensor, [SETTINGS[tensor["name"]]]))
    return values


def _shape(tensor: Mapping[str, Any]) -> list[int]:
    return [max(1, int(length)) for length in tensor["dims"]]


def model_path(model: str) -> str:
    """Return the path of `model` in the V2 protocol."""
    return f"/v2/models/{quote(model, safe='')}"


# Interpreting an answer


# The Python backend's message for a process that it has lost. No other answer means that a model is dead.
LOST = re.compile(
    r"Stub process(?: '(?P<model>[^'\"\\]+)_\d+_\d+')?[^\"\\]*is not healthy\.?|Failed to obtain the health mutex\.?"
)
PATIENCE_SECONDS = 10.0  # a model that gives no answer and makes no progress for this long may be dead
LOOK_SECONDS = 1.0  # between two measurements of the progress of a model that has not answered
# If requests failed and none succeeded for this long, the requests before the probe are failing one by one.
FAILING_SECONDS = 2.0
BUSY_SHARE = 0.05  # of a core; a process that uses more than this is working
MAX_BYTES = 1 << 20  # the most that is read from an answer


@dataclass(frozen=True)
class Death:
    """The reason why a model can't answer.

    `models` are the models whose processes must be replaced; empty if the whole server must be.
    """

    models: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Progress:
    """The progress of a probe's workers so far; `counts` is empty if the server reports none.

    `failures` is the number of requests that failed. They are not progress, as a stopped engine with streams fails them
    one after the other.
    """

    counts: tuple[int | bytes, ...]
    failures: int
    cpu_seconds: float
    at: float

    def beyond(self, before: Progress) -> bool:
        """Return whether anything was done since `before`."""
        worked = self.cpu_seconds - before.cpu_seconds
        return self.counts != before.counts or worked > BUSY_SHARE * (self.at - before.at)


def send(target: Target, probe: Probe, patience: float = PATIENCE_SECONDS) -> Death | None:
    """Send `probe`, and return the reason why the model is dead; None if it is not, or if the connection broke.

    Waits for the answer as long as the model makes progress, so a server that is only overloaded counts as alive.
    """
    connection = connect(target.http_url, CONNECT_SECONDS)
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
    """Wait for the answer. Returns the reason why none will come, or an empty string if it has begun to arrive."""
    began = time.monotonic()
    last: Progress | None = None  # the last measurement that showed progress
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
    """Measure the progress of the workers of `probe` until now: requests, an engine's steps, and CPU time."""
    counts: list[int | bytes] = []
    failures = 0
    with suppress(*NO_ANSWER):
        for worker in probe.workers:
            statistics = json.loads(call(f"{target.http_url}{model_path(worker)}/stats"))["model_stats"]
            counts.append(_requests(statistics, "success"))
            failures += _requests(statistics, "fail")
        if target.metrics_url:
            counts += _steps_made(call(target.metrics_url), probe.workers)
    return Progress(tuple(counts), failures, cpu_seconds(probe.workers if counts else ()), time.monotonic())


def _requests(versions: Sequence[Mapping[str, Any]], outcome: str) -> int:
    """Return the number of requests to all versions of a model with an `outcome`: success or fail."""
    return sum(int(version["inference_stats"][outcome]["count"]) for version in versions)


def _steps_made(metrics: bytes, workers: Sequence[str]) -> list[bytes]:
    labels = [f'"{name}"'.encode() for name in {*workers, *(worker.removesuffix("_stream") for worker in workers)}]
    lines = (line for line in metrics.splitlines() if line.startswith(b"hfx_steps_total"))
    return [line for line in lines if any(label in line for label in labels)]
