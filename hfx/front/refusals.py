"""Answers that the front gives by itself: a status, and a message in the form of Triton's errors."""

from __future__ import annotations

import json
from collections.abc import Sequence

Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")
RETRY: Header = (b"retry-after", b"1")


class Refusal(Exception):
    """A request that is not passed on: the `status` and `headers` of the answer, and its body."""

    def __init__(self, status: int, message: str, headers: Sequence[Header] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.body = json.dumps({"error": message}).encode()
        self.headers: list[Header] = [JSON, (b"content-length", b"%d" % len(self.body)), *headers]


def overloaded(message: str) -> Refusal:
    """A refusal because of load: 503, and the time after which to try again."""
    return Refusal(503, f"{message} Try again later.", [RETRY])
