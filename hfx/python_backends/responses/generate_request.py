"""A request's tensors as a GenerateRequest; which values its fields may have is decided in `generation`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..engine.errors import InvalidRequest

LISTS = ("stop_words",)
EARLY_STOPPING = {"true": True, "false": False}  # the third value is "never"
DECODED = 2**16  # bytes of a text up to which it is decoded here; of a longer one, only the part that is read


@dataclass(frozen=True)
class GenerateRequest:
    """`fields` are those of TextGenerator, `deadline` is in seconds of `time.monotonic`.

    `cancels` is the id of the requests to be cancelled, empty where this is a request for a text.
    """

    text: str | bytes
    fields: dict[str, Any]
    streams: bool
    deadline: float | None
    cancels: str


def parse_request(tensors: Iterable[tuple[str, list[Any]]]) -> GenerateRequest:
    """The request in the tensors (name, values; texts as bytes) that came just now. Raises InvalidRequest."""
    fields = {name: _value(name, values) for name, values in tensors}
    cancels = fields.pop("cancel_request", "")
    if "text_input" not in fields and not cancels:
        raise InvalidRequest("text_input", None, "one text")
    text, streams = fields.pop("text_input", ""), fields.pop("stream", False)
    deadline = _deadline(fields.pop("timeout_ms", None))
    early = fields.get("early_stopping")
    if early is not None:
        fields["early_stopping"] = EARLY_STOPPING.get(early, early)
    return GenerateRequest(text, fields, streams, deadline, cancels)


def _deadline(timeout: int | None) -> float | None:
    if timeout is None:
        return None
    if timeout < 1:
        raise InvalidRequest("timeout_ms", timeout, "milliseconds, at least 1")
    return time.monotonic() + timeout / 1000


def _value(name: str, values: list[Any]) -> Any:
    if name in LISTS:
        return [_decoded(name, value) for value in values]
    if len(values) != 1:
        raise InvalidRequest(name, values[:8], "one value")
    return _decoded(name, values[0])


def _decoded(name: str, value: Any) -> Any:
    if not isinstance(value, bytes) or (name == "text_input" and len(value) > DECODED):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, value[:40], f"UTF-8; {error.reason} at byte {error.start}") from None
