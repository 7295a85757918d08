"""Logs the requests that were in progress when Triton ended, because one of them may have caused it.

A line describes the parts of a request that Triton reads: names, data types and sizes. It has no contents.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from hfx.front.guard import HEAD_LENGTH
from hfx.front.refusals import Header
from hfx.front.response import log_line

MOST_LINES = 8  # within SECONDS; the last of them says that further requests are not listed
SECONDS = 10.0
MOST_HEAD = 1 << 16  # bytes of JSON that are read of a request
MOST_SHOWN = 400  # characters of a request's shape


class LostRequests:
    """Writes a log line for each request that Triton lost."""

    def __init__(self) -> None:
        self._began, self._lines = 0.0, 0

    def add(self, method: bytes, path: bytes, headers: Sequence[Header], body: bytes) -> None:
        """Log a request that Triton has not answered."""
        now = time.monotonic()
        if now - self._began > SECONDS:
            self._began, self._lines = now, 0
        self._lines += 1
        if self._lines == MOST_LINES:
            log_line("Triton ended before it answered further requests, which are not listed.")
        if self._lines < MOST_LINES:
            log_line(f"Triton ended before it answered {shape(method, path, headers, body)}.")


def shape(method: bytes, path: bytes, headers: Sequence[Header], body: bytes) -> str:
    """Return the method, path and size of a request; for infer requests also tensors and names of parameters."""
    line = f"{method.decode()} {path.decode('ascii', 'backslashreplace')} ({len(body)} bytes)"
    length = int(dict(headers).get(HEAD_LENGTH, b"0"))
    if not 0 < length <= MOST_HEAD:
        return line
    request = json.loads(body[:length])
    tensors = [_tensor(tensor) for tensor in (*request["inputs"], *request.get("outputs", ()))]
    names = ", ".join(map(ascii, sorted(request.get("parameters", ()))))
    return f"{line}: {', '.join(tensors)}{names and f'; parameters {names}'}"[:MOST_SHOWN]


def _tensor(tensor: dict[str, Any]) -> str:
    described = f"{tensor['name']!a}"
    if "shape" in tensor:
        described += f" {tensor['datatype']} {tensor['shape']} of {tensor['parameters']['binary_data_size']} bytes"
    return described
