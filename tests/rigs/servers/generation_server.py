"""Every interface of a generator on a real server, the engine's own answers, and the server's metrics.

The interfaces are raw HTTP and raw gRPC, not the client library of this project.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from hfx.local.generator import LocalGenerator
from hfx.triton import EmbeddedServer
from tests.rigs.clients.generation_grpc import grpc_infer, grpc_pieces, grpc_whole
from tests.rigs.clients.generation_http import http_generate, http_infer, sse
from tests.rigs.clients.generation_requests import TIMEOUT, Answer, Ask, Events, answer_of
from tests.rigs.machine.processors import HAS_NATIVE

WRITERS = {"stories": "stories-gpt2", "summaries": "summaries-bart", "notes": "summaries-t5"}
FASTEST = "native" if HAS_NATIVE else "onnxruntime"
RUNTIMES = {"stories": FASTEST, "summaries": FASTEST, "notes": "onnxruntime"}
RECITAL = "recital"
TRANSLATOR = "translator"
SLOTS = {"stories": 8, "summaries": 8, "notes": 8, RECITAL: 4, TRANSLATOR: 4}
QUEUED_A_SLOT = 16


def streamed(events: Callable[[EmbeddedServer, Ask], Events]) -> Callable[[EmbeddedServer, Ask], Answer]:
    """Return an interface that reads a stream to its end, and check that only the last piece has a finish reason."""

    def ask_all(server: EmbeddedServer, ask: Ask) -> Answer:
        with events(server, ask) as found:
            pieces = list(found)
        assert [bool(piece["finish_reason"]) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        return answer_of(pieces)

    return ask_all


STREAMS: dict[str, Callable[[EmbeddedServer, Ask], Events]] = {"sse": sse, "grpc stream": grpc_pieces}
DOORS: dict[str, Callable[[EmbeddedServer, Ask], Answer]] = {
    "HTTP infer": http_infer,
    "gRPC infer": grpc_infer,
    "/generate": http_generate,
    "/generate of the engine": partial(http_generate, member="_stream"),
    "gRPC stream, whole": grpc_whole,
    **{name: streamed(events) for name, events in STREAMS.items()},
}


def in_process(repository: Path, asks: Sequence[Ask]) -> list[Answer]:
    """Return the answers of the engine in this process to each of `asks`, one after the other."""
    with ExitStack() as stack:
        models = {ask.model for ask in asks}
        local = {model: stack.enter_context(LocalGenerator.open(repository, model)) for model in models}
        return [answer_of([local[ask.model].infer(ask.fields)]) for ask in asks]


def metrics(server: EmbeddedServer, model: str) -> dict[str, float]:
    """Return the metrics of `model` by name, summed up over further labels (reasons, buckets)."""
    with urllib.request.urlopen(server.metrics_url, timeout=TIMEOUT) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        name, _, rest = line.partition("{")
        if f'model="{model}"' in rest:
            with suppress(ValueError):
                found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def all_free(server: EmbeddedServer, model: str) -> bool:
    """Return whether the engine of `model` is idle."""
    found = metrics(server, model)
    return found["hfx_slots_free"] == SLOTS[model] and found["hfx_queue_length"] == 0
