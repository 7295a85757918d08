"""Requests to a generator and its answers, as values that all protocols share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from hfx.exporter.generation.folders import STREAM_INPUTS

DATATYPES = {spec.name: spec.data_type.removeprefix("TYPE_").replace("STRING", "BYTES") for spec in STREAM_INPUTS}
FIGURES = ("text_output", "finish_reason", "input_tokens", "output_tokens", "truncated_tokens")
TIMEOUT = 120.0  # seconds after which a waiting caller counts as hanging
Event = dict[str, Any]
Events = AbstractContextManager[Iterator[Event]]


class AskFailed(Exception):
    """The server's error: `status` is an HTTP code or the name of a gRPC one, empty within a gRPC stream."""

    def __init__(self, status: int | str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Ask:
    """A request to the generator `model`: its text and its settings."""

    model: str
    text: str | bytes
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        return {"text_input": self.text, **self.settings}


@dataclass(frozen=True)
class Answer:
    """The figures of an answer, and the pieces that it came in, which are not compared."""

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    truncated_tokens: int
    pieces: tuple[str, ...] = field(default=(), compare=False)


def answer_of(pieces: list[Mapping[str, Any]]) -> Answer:
    """An answer that came in `pieces`."""
    texts = tuple(piece["text_output"] for piece in pieces)
    _, *figures = (pieces[-1][name] for name in FIGURES)
    return Answer("".join(texts), *figures, pieces=texts)


def tensors(fields: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    return [(name, list(value) if isinstance(value, list | tuple) else [value]) for name, value in fields.items()]
