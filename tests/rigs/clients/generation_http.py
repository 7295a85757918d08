"""The interfaces of a generator by raw HTTP: infer, /generate, and the events of /generate_stream."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from hfx.triton import EmbeddedServer
from tests.rigs.clients.generation_requests import DATATYPES, TIMEOUT, Answer, Ask, AskFailed, Event, answer_of, tensors


def post(
    server: EmbeddedServer, path: str, body: bytes, timeout: float = TIMEOUT, content: str = "application/json"
) -> bytes:
    """Return the answer to a POST of `content` to `/v2/models/PATH`. Raises AskFailed."""
    request = urllib.request.Request(f"{server.http_url}/v2/models/{path}", body, {"Content-Type": content})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise AskFailed(error.code, _message(error.read())) from None


def http_infer(server: EmbeddedServer, ask: Ask) -> Answer:
    """Send a plain infer request to NAME."""
    inputs = [
        {"name": name, "datatype": DATATYPES[name], "shape": [1, len(values)], "data": values}
        for name, values in tensors(ask.fields)
    ]
    answer = json.loads(post(server, f"{ask.model}/infer", json.dumps({"inputs": inputs}).encode()))
    return answer_of([{output["name"]: output["data"][0] for output in answer["outputs"] if output["data"]}])


def http_generate(server: EmbeddedServer, ask: Ask, member: str = "") -> Answer:
    """Send a request to /generate of NAME, or of its member with this ending."""
    answer = json.loads(post(server, f"{ask.model}{member}/generate", json.dumps(ask.fields).encode()))
    if "error" in answer:
        raise AskFailed(200, answer["error"])
    return answer_of([answer])


@contextmanager
def sse(server: EmbeddedServer, ask: Ask, timeout: float = TIMEOUT) -> Iterator[Iterator[Event]]:
    """Yield the events of /generate_stream; leaving the block early closes the socket."""
    address = server.http_url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        body = json.dumps({**ask.fields, "stream": True}).encode()
        connection.request("POST", f"/v2/models/{ask.model}_stream/generate_stream", body)
        yield _sse_events(connection)
    finally:
        connection.close()


def _sse_events(connection: http.client.HTTPConnection) -> Iterator[Event]:
    with connection.getresponse() as answer:
        if answer.status != 200:
            raise AskFailed(answer.status, _message(answer.read()))
        for line in answer:
            if line.strip():
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise AskFailed(200, event["error"])
                yield event


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
