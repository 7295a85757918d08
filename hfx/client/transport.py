"""The interface of a connection to a server, which is implemented for gRPC and HTTP.

The methods of a transport are coroutines for both clients. The coroutines of a blocking transport block and never
suspend, so that `run` can complete them without an event loop.
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
        """Return the next answer's tensors, or None after the last. Raises RequestTimeout after `timeout` seconds."""

    async def close(self) -> None:
        """Close the stream. An unfinished request is cancelled on the server."""

    def cancel(self) -> None:
        """Close the stream without waiting. Other threads and the garbage collector may call this."""


class Transport(Protocol):
    """A connection to a server. Failures are ServerError or a subclass; the session adds the model and the request."""

    url: str

    async def infer(self, request: Request) -> dict[str, Array]:
        """Send `request`, and return the output tensors by name."""

    def stream(self, request: Request) -> Stream:
        """Return the answers of a decoupled model. The request is sent at once, or with the first read."""

    async def is_live(self) -> bool:
        """Return whether the server answers. Raises ServerError if it refuses the token."""

    async def is_ready(self) -> bool:
        """Return whether the server answers and all models are ready. Raises ServerError if it refuses the token."""

    async def models(self, timeout: float) -> list[str]:
        """Return the names of the ready models, including members of other models."""

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        """Return the inputs and outputs of `model`, to which `completed` has added the task or kind."""

    async def parameter(self, model: str, name: str, timeout: float) -> str:
        """Return the parameter `name` of the configuration of `model`; empty if there is none."""

    async def close(self) -> None:
        """Close the connection. Requests in flight end with an error."""


async def completed(metadata: ModelMetadata, transport: Transport, timeout: float) -> ModelMetadata:
    """Return `metadata` with a generator's task, or the kind of token vectors, which only the configuration has."""
    outputs = {tensor.name for tensor in metadata.outputs}
    if TEXT_OUTPUT in outputs:
        return replace(metadata, task=await transport.parameter(metadata.name, "task", timeout))
    if INPUT_TOKENS in outputs:
        return replace(metadata, kind=await transport.parameter(metadata.name, KIND, timeout))
    return metadata


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never suspends, as its transport blocks, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise AssertionError("a blocking transport has suspended")
