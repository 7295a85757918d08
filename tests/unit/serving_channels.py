"""A caller's end of Triton, as far as a request's responses need it: what was sent, and whether the caller has left."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hfx.python_backends.generation.results import Piece


class Caller:
    """A Channel (response_writer.py) that keeps what comes; `sending` is called before each response."""

    def __init__(self, sending: Callable[[], None] = lambda: None) -> None:
        self.pieces: list[Piece] = []
        self.errors: list[Exception] = []
        self.asked = 0
        self.has_left = False
        self.ended = threading.Event()
        self._sending = sending

    @property
    def finals(self) -> int:
        return len(self.errors) + sum(bool(piece.finish_reason) for piece in self.pieces)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def send(self, piece: Piece) -> None:
        self._sending()
        self.pieces.append(piece)
        if piece.finish_reason:
            self.ended.set()

    def refuse(self, error: Exception) -> None:
        self._sending()
        self.errors.append(error)
        self.ended.set()

    def left(self) -> bool:
        self.asked += 1
        return self.has_left
