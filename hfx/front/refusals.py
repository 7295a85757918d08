"""Answers that the front gives by itself: a status, and a message in the form of Triton's errors or of a dialect's."""

from __future__ import annotations

import json
from collections.abc import Sequence

Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")
RETRY: Header = (b"retry-after", b"1")


class Refusal(Exception):
    """A request that is not answered: the `status` and `headers` of the answer, and its `message`.

    `param` names the field of the request that can't be taken, `reason` is the one in a message of hfx's backends (such
    as TOO_LONG); both are empty where there is none.
    """

    def __init__(
        self, status: int, message: str, headers: Sequence[Header] = (), *, param: str = "", reason: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
        self.param = param
        self.reason = reason


def error_object(refusal: Refusal) -> tuple[int, object]:
    """The status and JSON of a refusal, in the form of Triton's errors."""
    return refusal.status, {"error": refusal.message}


def json_head(body: bytes) -> list[Header]:
    """The headers of an answer that is JSON."""
    return [JSON, (b"content-length", b"%d" % len(body))]


def dumped(content: object) -> bytes:
    """`content` as JSON."""
    return json.dumps(content, separators=(",", ":")).encode()


def overloaded(message: str) -> Refusal:
    """A refusal because of load: 503, and the time after which to try again."""
    return Refusal(503, f"{message} Try again later.", [RETRY])
