"""What the client needs of a connection to a server, whatever its protocol and its way of waiting.

A transport carries tensors; it must not know tasks, texts or retries. Its methods are coroutines for both clients:
those of a blocking transport wait inside, and so never give the control back before they are done (`waiting.run`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hfx.client.metadata import ModelMetadata, TensorMetadata
    from hfx.client.tensors import Array

PROBE_SECONDS = 2.0  # how long a question about the server's health may take


@dataclass(frozen=True, eq=False)
class Request:
    """One request: input tensors with a batch dimension of 1, to be answered within `timeout` seconds by `outputs`."""

    model: str
    inputs: Mapping[str, Array]
    outputs: tuple[TensorMetadata, ...]
    id: str
    timeout: float


class Stream(Protocol):
    """Answers to one request, one after the other."""

    async def read(self, timeout: float) -> dict[str, Array] | None:
        """The next answer's tensors, None after the last; raises RequestTimeout when none comes for so many seconds."""

    async def close(self) -> None:
        """Let go of it; if it has not ended, the server is told to end it."""

    def cancel(self) -> None:
        """As `close`, but at once and from any place: another thread, the garbage collector."""


class Transport(Protocol):
    """A connection to a server. Failures are ServerError in its kinds; model and request are added by the client."""

    url: str

    async def infer(self, request: Request) -> dict[str, Array]:
        """The output tensors, by name."""

    def stream(self, request: Request) -> Stream:
        """The answers of a decoupled model; sent at once or with the first read."""

    async def is_live(self) -> bool:
        """Whether the server answers."""

    async def is_ready(self) -> bool:
        """Whether the server answers, and all of its models are ready."""

    async def models(self, timeout: float) -> list[str]:
        """The names of the ready models, members too."""

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        """What MODEL takes and gives."""

    async def close(self) -> None:
        """Close the connection; what is under way ends with an error."""
