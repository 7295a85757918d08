"""Requests at the socket of the Batch API: behind other requests, without a key, and counted for a label."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hfx.front.keys import LABEL_HEADER
from hfx.triton.front import Front
from tests.rigs.servers.front_rig import SECONDS, Seen, ask, connect, fronted, post, read_answer, upstream

MOST = 3


@contextmanager
def backed(folder: Path, keys: str = "") -> Iterator[tuple[Front, Seen, Path]]:
    """Yield a front with a socket of batches at the path, and a record of its server's requests."""
    path = folder / "front.sock"
    if keys:
        (folder / "keys").write_text(keys)
    with socket.socket(socket.AF_UNIX) as listener, upstream() as (port, seen):
        listener.bind(str(path))
        listener.listen()
        settings = {"background": listener.fileno(), "background_requests": MOST}
        with fronted(port, key_file=str(folder / "keys") if keys else "", **settings) as front:
            yield front, seen, path


def background(path: Path, request: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(str(path))
        connection.sendall(request)
        return read_answer(connection)


def entered(seen: Seen, seconds: float = SECONDS) -> bool:
    return seen.entered.acquire(timeout=seconds)


@pytest.mark.parametrize(("others", "beside"), [(0, MOST), (1, 1), (MOST + 2, 1)])
def test_batch_requests_run_one_at_a_time_beside_other_requests(others: int, beside: int, tmp_path: Path) -> None:
    with backed(tmp_path) as (front, seen, path):
        answers: list[int] = []
        kept = [connect(front) for _ in range(others)]
        for connection in kept:
            connection.sendall(post(b'{"text": "hold"}'))
            assert entered(seen)
        threads = [
            threading.Thread(target=lambda: answers.append(background(path, post(b'{"text": "hold"}'))[0]))
            for _ in range(MOST + 1)
        ]
        for thread in threads:
            thread.start()
        for _ in range(beside):
            assert entered(seen)
        assert not entered(seen, 0.3)
        assert ask(front, post(b'{"text": "other"}'))[0] == 200  # others never wait
        seen.hold.set()
        for thread in threads:
            thread.join(SECONDS)
        assert answers == [200] * (MOST + 1)
        for connection in kept:
            assert read_answer(connection)[0] == 200
            connection.close()


def test_a_request_of_a_batch_needs_no_key_and_counts_for_its_label(tmp_path: Path) -> None:
    label = LABEL_HEADER.decode()
    with backed(tmp_path, "slow:a-key-of-the-label-slow requests_per_second=1\n") as (front, _, path):
        named = {label.replace("-", "_"): "slow"}
        assert [background(path, post(b"{}", **named))[0] for _ in range(2)] == [200, 429]
        gone = {label.replace("-", "_"): "removed"}
        status, headers, body = background(path, post(b"{}", **gone))
        assert status == 429 and headers["retry-after"] and b"no API key with the label" in body  # the batch pauses
        assert ask(front, post(b"{}", **named))[0] == 401  # the header is nothing at the public port
        status, _, body = ask(front, post(b"{}", **named, authorization="Bearer a-key-of-the-label-slow"))
        assert status == 429 and "slow" in json.loads(body)["error"]


def test_a_batch_is_cancelled_and_listed_by_a_key_that_has_used_its_bounds(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("slow:a-key-of-the-label-slow requests_per_second=1\n")
    key = {"authorization": "Bearer a-key-of-the-label-slow"}
    with (
        upstream() as (port, seen),
        upstream() as (other, _),
        fronted(other, key_file=str(tmp_path / "keys"), batches=f"http://127.0.0.1:{port}") as front,
    ):
        created = [ask(front, post(b"{}", "/v1/batches", **key))[0] for _ in range(2)]
        assert created == [200, 429]
        assert ask(front, post(b"", "/v1/batches/batch_1/cancel", **key))[0] == 200
        for path in ("/v1/batches", "/v1/batches/batch_1", "/v1/files"):
            head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {key['authorization']}\r\n\r\n"
            assert ask(front, head.encode())[0] == 200
        assert [path for path, _, _ in seen.requests] == ["/v1/batches", "/v1/batches/batch_1/cancel"]
