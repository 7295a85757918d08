"""What the client needs of a connection to a server, whatever its protocol.

A transport carries tensors. Its methods are coroutines for both clients: those of a blocking transport block inside
and never suspend, so that `run` completes them without an event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hfx.client.tensors import Array
    from hfx.metadata import ModelMetadata, TensorMetadata

Result = TypeVar("Result")
PROBE_SECONDS = 2.0  # the timeout of a request for the server's health
TASK = "task"  # the parameter of a generator's configuration that says what it was trained for


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
        """Close it; a request that has not ended is cancelled on the server."""

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
        """Whether the server answers. Raises ServerError where it refuses the token."""

    async def is_ready(self) -> bool:
        """Whether it answers, and all of its models are ready. Raises ServerError where it refuses the token."""

    async def models(self, timeout: float) -> list[str]:
        """The names of the ready models, members too."""

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        """The inputs and outputs of `model`; of a generator, its task."""

    async def parameter(self, model: str, name: str, timeout: float) -> str:
        """A parameter of the configuration of `model`; empty where it has none of this `name`."""

    async def close(self) -> None:
        """Close the connection; what is under way ends with an error."""


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine returns that never suspends, because its transport blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise AssertionError("a blocking transport has suspended")
