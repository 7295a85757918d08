"""Whether the models of a running Triton server can answer: each entry point is asked a cheap question over HTTP.

Triton calls a model ready whose Python process has died or hangs, so only an answer proves anything. Owns the questions
and their judgement, which never takes a busy server for a dead one; it must not know who starts or restarts servers.
Standard library and Python 3.10 only, in one file: `canary.py http://HOST:PORT [METRICS_URL]` is also the container's
health check (exit code 0 or 1, one line).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import select
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

# What the Python backend says of a process that it has lost; no other answer is the end of a model.
LOST = re.compile(r"Stub process[^\"\\]*is not healthy\.?|Failed to obtain the health mutex\.?")
TEXT = "hi"
SETTINGS = {"max_tokens": 1, "timeout_ms": 10_000}  # of generators, where their configuration lists them
CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 10.0  # without an answer: then the model's progress is looked at, and again after as long
BUSY_SHARE = 0.05  # of a core: a process that takes more is at work
MOST_BYTES = 1 << 20  # read of an answer
JSON_HEADERS = {"Content-Type": "application/json"}
STUB = "triton_python_backend_stub"
STUB_INSTANCE_ARGUMENT = 8  # the stub's argv: …, instance name such as NAME_tokenize_0_0, …
SERVER = "tritonserver"
# What reading the answers of something that is no Triton server, or of none at all, raises.
UNANSWERED = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class Target:
    """A server's addresses: `http_url` is `http://HOST:PORT`; `metrics_url` may be empty."""

    http_url: str
    metrics_url: str = ""


@dataclass(frozen=True)
class Question:
    """A cheap request to the entry point `model`; `workers` are the models that do the work of answering.

    Questions of the same `group` share workers: one that waits for its answer stands for all of them.
    """

    model: str
    path: str
    body: bytes
    workers: tuple[str, ...]
    group: str


@dataclass(frozen=True)
class Progress:
    """What a question's workers have done so far; `counts` is empty when the server tells nothing."""

    counts: tuple[bytes, ...]
    cpu_seconds: float
    at: float

    def beyond(self, before: Progress) -> bool:
        """Whether anything was done since BEFORE."""
        worked = self.cpu_seconds - before.cpu_seconds
        return self.counts != before.counts or worked > BUSY_SHARE * (self.at - before.at)


# What to ask


def questions(target: Target) -> list[Question]:
    """A question for each entry point whose required inputs are all texts; raises one of UNANSWERED.

    Members of an ensemble that is asked are covered by it, and models that can't be asked by those that call them.
    """
    index = json.loads(_call(f"{target.http_url}/v2/repository/index", b'{"ready": true}'))
    found = sorted({entry["name"] for entry in index})
    configs = [json.loads(_call(f"{target.http_url}{_path(name)}/config")) for name in found]
    askable = [config for config in configs if _takes_texts_only(config)]
    covered = {step for config in askable for step in _steps(config)}
    return [_question(config) for config in askable if config["name"] not in covered]


def groups(asked: Iterable[Question]) -> list[list[Question]]:
    """The questions ASKED by group, each in its order: an entry point before the engine that it calls."""
    by_group: dict[str, list[Question]] = {}
    for question in asked:
        by_group.setdefault(question.group, []).append(question)
    return list(by_group.values())


def _takes_texts_only(config: Mapping[str, Any]) -> bool:
    required = [tensor["data_type"] for tensor in config.get("input", ()) if not tensor.get("optional")]
    return bool(required) and set(required) == {"TYPE_STRING"}


def _steps(config: Mapping[str, Any]) -> list[str]:
    return [step["model_name"] for step in config.get("ensemble_scheduling", {}).get("step", ())]


def _question(config: Mapping[str, Any]) -> Question:
    name = config["name"]
    engine = config.get("parameters", {}).get("engine", {}).get("string_value", "")  # of a generator's relay
    workers = tuple(_steps(config)) or (name, *filter(None, [engine]))
    decoupled = config.get("model_transaction_policy", {}).get("decoupled")
    path, body = ("generate", _generate(config)) if decoupled else ("infer", _infer(config))
    return Question(name, f"{_path(name)}/{path}", json.dumps(body).encode(), workers, engine or name)


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
    found: list[tuple[Mapping[str, Any], list[Any]]] = []
    for tensor in config["input"]:
        if not tensor.get("optional"):
            elements = 1
            for length in _shape(tensor):
                elements *= length
            found.append((tensor, [TEXT] * elements))
        elif tensor["name"] in SETTINGS and tensor["data_type"] == "TYPE_INT32":
            found.append((tensor, [SETTINGS[tensor["name"]]]))
    return found


def _shape(tensor: Mapping[str, Any]) -> list[int]:
    return [max(1, int(length)) for length in tensor["dims"]]


def _path(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}"


# Asking, and what the answer means


def ask(target: Target, question: Question, patience: float = PATIENCE_SECONDS) -> str:
    """Why the model is dead; an empty string when it is not, or when nobody can tell (the connection broke).

    Waits for the answer for as long as the model makes progress, so a server that is merely overloaded is alive.
    """
    parts = urlsplit(target.http_url)
    before: Progress | None = None
    with closing(http.client.HTTPConnection(parts.netloc, timeout=CONNECT_SECONDS)) as connection:
        try:
            connection.request("POST", question.path, question.body, JSON_HEADERS)
            while not _readable(connection, patience):
                now = progress(target, question)
                if before is not None and not now.beyond(before):
                    return f"{question.model} gave no answer for {2 * patience:g} s and did nothing meanwhile"
                before = now
            answer = connection.getresponse().read(MOST_BYTES).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return ""
    lost = LOST.search(answer)
    return f"{question.model} can't answer ({lost[0]})" if lost else ""


def ask_in_turn(target: Target, group: Sequence[Question]) -> str:
    """The first death among the questions of GROUP, whose others then aren't asked; an empty string without one."""
    return next(filter(None, (ask(target, question) for question in group)), "")


def _readable(connection: http.client.HTTPConnection, seconds: float) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def progress(target: Target, question: Question) -> Progress:
    """What the workers of QUESTION have done until now: Triton's statistics, an engine's steps, and CPU time."""
    counts: list[bytes] = []
    with suppress(OSError, http.client.HTTPException):
        counts += [_call(f"{target.http_url}{_path(worker)}/stats") for worker in question.workers]
        if target.metrics_url:
            counts += _steps_made(_call(target.metrics_url), question.workers)
    return Progress(tuple(counts), cpu_seconds(question.workers if counts else ()), time.monotonic())


def _steps_made(metrics: bytes, workers: Sequence[str]) -> list[bytes]:
    labels = [f'"{name}"'.encode() for name in {*workers, *(worker.removesuffix("_stream") for worker in workers)}]
    lines = (line for line in metrics.splitlines() if line.startswith(b"hfx_steps_total"))
    return [line for line in lines if any(label in line for label in labels)]


def cpu_seconds(models: Sequence[str]) -> float:
    """CPU time of the processes that run MODELS, of those seen from here: their stubs, or the server without stubs.

    Without MODELS it is that of every such process. Another server's are counted too: they can only add patience.
    """
    stubs: dict[str, float] = {}
    server = 0.0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            times = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[11:13]
        except OSError:
            continue  # it ended while we looked
        seconds = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        if arguments[0].endswith(STUB) and len(arguments) > STUB_INSTANCE_ARGUMENT:
            model = arguments[STUB_INSTANCE_ARGUMENT].rsplit("_", 2)[0]
            stubs[model] = stubs.get(model, 0.0) + seconds
        elif arguments[0].endswith(SERVER):
            server += seconds
    return sum(stubs.get(model, server) for model in models) if models else sum(stubs.values(), server)


def _call(url: str, body: bytes | None = None) -> bytes:
    """The content at URL (POST with a BODY); OSError or HTTPException when there is none."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=CONNECT_SECONDS)) as connection:
        connection.request("GET" if body is None else "POST", parts.path, body, {} if body is None else JSON_HEADERS)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != http.client.OK:
            raise http.client.HTTPException(f"{url} answers {answer.status}: {content[:200].decode(errors='replace')}")
        return content


# The health check


def main(arguments: Sequence[str]) -> int:
    """Print one line about the server whose URLs are ARGUMENTS; returns 0 when all of its models can answer."""
    parser = argparse.ArgumentParser(description="Whether the models of a Triton server can answer.")
    parser.add_argument("http_url", help="http://HOST:PORT")
    parser.add_argument("metrics_url", nargs="?", default="", help="http://HOST:PORT/metrics")
    target = Target(**vars(parser.parse_args(arguments)))
    try:
        asked = groups(questions(target))
    except UNANSWERED as error:
        print(f"unhealthy: no Triton server answers at {target.http_url} ({type(error).__name__}: {error})")
        return 1
    dead = [reason for group in asked if (reason := ask_in_turn(target, group))]
    names = ", ".join(question.model for group in asked for question in group)
    print(f"unhealthy: {'; '.join(dead)}" if dead else f"healthy: {names or 'no model takes a question'}")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
