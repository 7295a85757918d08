"""Transport: the interface of a connection to a server, implemented for gRPC and HTTP.

Its methods are coroutines for both clients. Those of a blocking transport block and never suspend, so `run` can
complete them without an event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hfx.names import INPUT_TOKENS, TEXT_OUTPUT
from hfx.tasks.kinds import KIND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hfx.client.tensors import Array
    from hfx.metadata import ModelMetadata, TensorMetadata

Result = TypeVar("Result")
PROBE_SECONDS = 2.0  # the timeout of a request for the server's health


@dataclass(frozen=True, eq=False)
class Request:
    """One request: input tensors with a batch dimension of 1, the expected outputs, and a timeout in seconds."""

    model: str
    inputs: Mapping[str, Array]
    outputs: tuple[TensorMetadata, ...]
    id: str
    timeout: float


class Stream(Protocol):
    """The answers to one request of a decoupled model."""

    async def read(self, timeout: float) -> dict[str, Array] | None:
        """The next answer's tensors, None after the last. Raises RequestTimeout after `timeout` seconds."""

    async def close(self) -> None:
        """Close it. An unfinished request is cancelled on the server."""

    def cancel(self) -> None:
        """As `close`, but without waiting, and callable from other threads and the garbage collector."""


class Transport(Protocol):
    """A connection to a server. Failures are ServerError or a subclass; the session adds the model and the request."""

    url: str

    async def infer(self, request: Request) -> dict[str, Array]:
        """The output tensors, by name."""

    def stream(self, request: Request) -> Stream:
        """The answers of a decoupled model. The request is sent at once, or with the first read."""

    async def is_live(self) -> bool:
        """Whether the server answers. Raises ServerError if it refuses the token."""

    async def is_ready(self) -> bool:
        """Whether it answers and all of its models are ready. Raises ServerError if it refuses the token."""

    async def models(self, timeout: float) -> list[str]:
        """The names of the ready models, members too."""

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        """The inputs and outputs of `model`, `completed`."""

    async def parameter(self, model: str, name: str, timeout: float) -> str:
        """The parameter `name` of the configuration of `model`; empty if there is none."""

    async def close(self) -> None:
        """Close the connection. Requests in flight end with an error."""


async def completed(metadata: ModelMetadata, transport: Transport, timeout: float) -> ModelMetadata:
    """`metadata` with what only the configuration says: a generator's task, the kind of token vectors."""
    outputs = {tensor.name for tensor in metadata.outputs}
    if TEXT_OUTPUT in outputs:
        return replace(metadata, task=await transport.parameter(metadata.name, "task", timeout))
    if INPUT_TOKENS in outputs:
        return replace(metadata, kind=await transport.parameter(metadata.name, KIND, timeout))
    return metadata


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never suspends, as its transport blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise AssertionError("a blocking transport has suspended")
