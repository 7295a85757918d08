"""A stand-in for Triton's side of a request: the responses that were sent, and whether the caller has gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from hfx.python_backends.generation.pieces import Piece


class Caller:
    """A channel that keeps responses, and errors by their codes; `sending` is called before each response."""

    def __init__(self, sending: Callable[[], None] = lambda: None) -> None:
        self.outputs: list[Mapping[str, Any]] = []
        self.codes: list[str] = []
        self.messages: list[str] = []
        self.finals = 0
        self.polls = 0
        self.has_left = False
        self.ended = threading.Event()
        self._sending = sending

    @property
    def text(self) -> str:
        return "".join(outputs["text_output"] for outputs in self.outputs)

    @property
    def last(self) -> Mapping[str, Any]:
        return self.outputs[-1]

    def send(self, outputs: Mapping[str, Any], final: bool) -> None:
        self._sending()
        self.outputs.append(outputs)
        self._end(final)

    def fail(self, message: str, code: str) -> None:
        self._sending()
        self.codes.append(code)
        self.messages.append(message)
        self._end(True)

    def is_cancelled(self) -> bool:
        self.polls += 1
        return self.has_left

    def _end(self, final: bool) -> None:
        self.finals += final
        if final:
            self.ended.set()


def outputs(text: str, **others: Any) -> dict[str, Any]:
    """Return the output tensors of a piece."""
    return Piece(text, **others).outputs()
