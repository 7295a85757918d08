"""A front process with a server in this process behind it that echoes requests, and raw connections to it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hfx.front.settings import Limits, Settings
from hfx.triton.front import Front

INFER = "/v2/models/toy/infer"  # whose bodies are written anew
GENERATE = "/v2/models/toy/generate"  # whose bodies go on as they came
SECONDS = 60.0
LARGE = 12 << 20  # bytes of an answer to a body with the word large: more than sockets hold


@dataclass
class Seen:
    """The requests that reached the server behind the front; `left` is released when a client disconnects.

    `answers` are the answers to GET, by path; other paths answer with empty objects. A GET of a path in `refused` is
    answered by 400 and nothing else.
    """

    connections: int = 0
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    hold: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    left: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: Seen

    def setup(self) -> None:
        self.seen.connections += 1
        super().setup()

    def do_GET(self) -> None:
        if self.path in self.seen.refused:
            self.send_response(400)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._answer(200, self.seen.answers.get(self.path, {}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if b"hold" in body:
            self.seen.entered.release()
            self.seen.hold.wait(SECONDS)
        if b"break" in body:
            self.close_connection = True
        elif self.path.endswith("generate_stream"):
            self._stream()
        else:
            self._answer(200, {"path": self.path, "bytes": len(body), "filling": "x" * (LARGE * (b"large" in body))})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        """Send one piece, and release `left` once the client has closed its connection."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"7\r\ndata: 1\r\n")
        self.connection.settimeout(SECONDS)
        if not self.connection.recv(1):
            self.seen.left.release()
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def upstream() -> Iterator[tuple[int, Seen]]:
    """Yield the port of a server that echoes requests, and a record of the requests."""
    seen = Seen()
    handler = type("Handler", (_Handler,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1], seen
        finally:
            seen.hold.set()
            server.shutdown()


@contextmanager
def fronted(
    port: int,
    limits: Limits | None = None,
    scrape_port: int = 0,
    report: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> Iterator[Front]:
    """Yield a front of the server at `port`."""
    front = Front("127.0.0.1", 0, Settings(limits=limits or Limits(), **settings), scrape_port, report)
    front.start(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}")
    try:
        yield front
    finally:
        front.kill()


def connect(front: Front) -> socket.socket:
    """Return a raw connection."""
    host, port = front.url.rpartition("/")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


@contextmanager
def stderr_file(path: Path) -> Iterator[Path]:
    """Redirect stderr of this process and its front to the file `path`, which may be read meanwhile.

    pytest's capfd empties its file as it reads it, and loses what another process writes in that moment.
    """
    saved, file = os.dup(2), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(file, 2)
    try:
        yield path
    finally:
        os.dup2(saved, 2)
        os.close(file)
        os.close(saved)


def post(body: bytes, path: str = GENERATE, **headers: str) -> bytes:
    """Return the bytes of a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_answer(connection: socket.socket) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return status, headers and body of the next answer; raises http.client.HTTPException or OSError without one."""
    answer = http.client.HTTPResponse(connection, method="POST")
    answer.begin()
    return answer.status, answer.headers, answer.read()


def ask(front: Front, request: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return the answer to `request` on a new connection."""
    with connect(front) as connection:
        connection.sendall(request)
        return read_answer(connection)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other end closes the connection without sending another byte."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
