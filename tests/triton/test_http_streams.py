"""Streams of requests by a seed, through the front to a real Triton, whose own parser reads what the front sends."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httptools
import pytest

from hfx.triton import EmbeddedServer
from tests.rigs.clients.http_streams import Read, stream
from tests.rigs.machine.tiers import chosen_seeds, full
from tests.rigs.servers.short_servers import started
from tests.rigs.servers.toy_models import write_model
from tests.unit.simulation.http_port import check, served, text

pytestmark = pytest.mark.triton
REQUEST = re.compile(rb'"HTTP request: ([0-9]+) ([^"]*)"\n')
METHODS = {b"0": b"GET", b"2": b"POST"}
SEEDS = 300
SECONDS = 10.0  # for an answer; without one, Triton waits for more of the request than the front has sent
CONFIG = """
backend: "python"
instance_group [ { kind: KIND_CPU count: 1 } ]
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters [ { key: "seen" value: { string_value: "FILE" } } ]
"""
ECHO = """
import json
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.seen = open(json.loads(args["model_config"])["parameters"]["seen"]["string_value"], "ab", 0)

    def execute(self, requests):
        answers = []
        for request in requests:
            text = pb.get_input_tensor_by_name(request, "text_input").as_numpy()
            self.seen.write(text[0].hex().encode() + b"\\n")
            answers.append(pb.InferenceResponse([pb.Tensor("text_output", text)]))
        return answers
"""


class Triton:
    """A real Triton with the model `echo`, and what it has seen so far: the starts of requests, and texts."""

    def __init__(self, server: EmbeddedServer, texts: Path) -> None:
        host, port = server.http_url.rpartition("/")[2].split(":")
        self.address = host, int(port)
        self._log, self._texts = server.log.open("rb"), texts.open("rb")

    def starts(self) -> list[tuple[bytes, bytes]]:
        """Return the methods and paths of the requests since the last call, from Triton's log."""
        return [(METHODS[found[1]], found[2]) for found in REQUEST.finditer(self._log.read())]

    def texts(self) -> list[bytes]:
        """Return the texts that the model has got since the last call."""
        return [bytes.fromhex(line.decode()) for line in self._texts]

    def connect(self) -> _Connection:
        return _Connection(self.address)


class _Connection:
    """A connection to Triton. A call sends a request, and returns its answer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=SECONDS)
        self.is_complete = False

    def on_message_complete(self) -> None:
        self.is_complete = True

    def __call__(self, request: bytes) -> bytes:
        self._socket.sendall(request)
        self.is_complete, answer, parser = False, b"", httptools.HttpResponseParser(self)
        while not self.is_complete:
            piece = self._socket.recv(1 << 16)
            assert piece, "Triton has closed the connection without an answer"
            parser.feed_data(piece)
            answer += piece
        return answer


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("echo")
    (folder / "texts").touch()
    write_model(folder / "repository", "echo", CONFIG.replace("FILE", str(folder / "texts")), ECHO)
    with started(folder / "repository", options=["--log-verbose=1"]) as server:
        yield Triton(server, folder / "texts")


def run(seed: int, triton: Triton) -> None:
    """Send the stream of a seed through a front to Triton, and compare what the client, the front and Triton see."""
    content = stream(seed)
    triton.starts()  # those of an earlier seed that failed
    triton.texts()
    seen = served(content, seed, triton.connect)
    check(content, seen)
    assert triton.starts() == [(request.method, request.path) for request, _ in seen.forwarded]
    answered = [request for request, (status, _) in seen.forwarded if status == 200 and request.method == b"POST"]
    assert triton.texts() == [model_text(request) for request in answered]


def model_text(request: Read) -> bytes:
    """Return the text that the model gets of a forwarded request."""
    return text(request) if request.path.endswith(b"/infer") else json.loads(request.body)["text_input"].encode()


@pytest.mark.parametrize("count", [SEEDS, full(20 * SEEDS)])
def test_triton_sees_the_requests_that_the_front_accepts(
    triton: Triton, count: int, pytestconfig: pytest.Config
) -> None:
    for seed in chosen_seeds(pytestconfig, count):
        try:
            run(seed, triton)
        except BaseException as error:
            error.add_note(f"pytest {__file__} --seed {seed}")
            raise
