"""Requests of `hfx deploy check --through`: retried while the server is busy; invalid answers are errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pkgutil import iter_modules
from typing import Any, get_args

import pytest

from hfx.client import Client
from hfx.deploy.server_check import CONVERSIONS, Dialect, check_models, dialect_infer
from hfx.errors import RequestRefused, ServerError, UsageError
from hfx.exporter.encoder.kinds import BY_KIND
from hfx.exporter.generation.tasks import find_generation_task
from hfx.exporter.verify import Published, Recorded
from hfx.front import dialects
from hfx.names import Kind, Task
from tests.rigs.files.manifests import manifest

Reply = tuple[int, Any]
STORY = {"choices": [{"text": " in the park"}]}
BUSY = (429, {"error": {"message": "The queue is full.", "type": "rate_limit_error"}})


@contextmanager
def answering(*replies: Reply) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield the address of a server with these replies and its received requests; the last reply is repeated."""
    received: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            status, content = replies[min(len(received), len(replies)) - 1]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()


GENERATOR = Published(manifest("m"), find_generation_task(Task.TEXT_GENERATION), None, (), "", Recorded((), ()))


def answer_of(url: str, dialect: Dialect, request: dict[str, Any]) -> dict[str, Any]:
    with Client(url) as client:
        [answer] = dialect_infer(client, dialect, GENERATOR)([request])
    return answer


def test_a_busy_server_is_asked_again_with_the_same_request() -> None:
    with answering(BUSY, (200, STORY)) as (url, received):
        request = {"text_input": "Anna was", "max_tokens": 5, "return_log_probs": True}
        assert answer_of(url, "openai", request) == {"text_output": " in the park"}
    assert received == [("/v1/completions", {"model": "m", "prompt": "Anna was", "max_tokens": 5})] * 2


@pytest.mark.parametrize("content", [{}, [], None, "text", {"choices": [1]}])
@pytest.mark.parametrize("dialect", ["openai", "huggingface", "mlserver"])
def test_an_answer_of_the_wrong_structure_is_a_server_error(content: Any, dialect: Dialect) -> None:
    with answering((200, content)) as (url, _), pytest.raises(ServerError, match=f"none of {dialect}"):
        answer_of(url, dialect, {"text_input": "a"})


def test_a_refusal_has_the_words_of_the_dialect() -> None:
    with (
        answering((400, {"error": {"message": "top_k is 'a'.", "param": "top_k"}})) as (url, _),
        pytest.raises(RequestRefused, match="top_k is 'a'"),
    ):
        answer_of(url, "openai", {"text_input": "a"})


def test_a_port_of_grpc_is_refused() -> None:
    with pytest.raises(UsageError, match="gRPC"):
        answer_of("127.0.0.1:8001", "openai", {"text_input": "a"})


def test_every_task_has_a_dialect() -> None:
    assert {task for tasks in CONVERSIONS.values() for task in tasks} == set(Task)


def test_each_dialect_is_one_of_the_front() -> None:
    served = {module.name for module in iter_modules(dialects.__path__)}
    assert set(get_args(Dialect)) == CONVERSIONS.keys() <= served


@pytest.mark.parametrize("kind", [Kind.LATE, Kind.TOKEN_VECTORS, Kind.PAIR_CLASSIFIER])
def test_several_vectors_or_scores_of_a_text_are_refused_by_the_name_of_the_model(kind: Kind) -> None:
    several = replace(GENERATOR, task=BY_KIND[kind], kind=kind)
    with pytest.raises(UsageError, match=rf"m \({kind}\)"):
        check_models("huggingface", [several])
