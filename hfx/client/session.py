"""What both clients do with a connection: check a request, send it, try again, explain why it failed.

All of it is coroutines, for `waiting.run` or an event loop. Owns the cache of models' metadata, the budget of retries
and whether the client is closed. It must not know protocols (transport.py) or tasks (asking.py).
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hfx.client import failures, many
from hfx.client.inputs import Values, check_text
from hfx.client.metadata import ModelMetadata, check_outputs, check_values
from hfx.client.retries import Deadline, Retries, RetryPolicy
from hfx.client.transport import PROBE_SECONDS, Request, Transport
from hfx.client.truncation import Truncations
from hfx.client.waiting import Waiting
from hfx.errors import HfxError, ModelUnknown, RequestRefused, RequestTimeout, ServerError, UsageError
from hfx.names import MEMBER_SUFFIXES, TIMEOUT_MS

if TYPE_CHECKING:
    from hfx.client.tensors import Tensors

Item = TypeVar("Item")
Result = TypeVar("Result")
READY_POLL_SECONDS = 0.1
CLOCK_SECONDS = 0.01  # by so much a timeout may end before the deadline that it was computed from
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Call(Generic[Result]):
    """One question: the model, its inputs as plain values, what its answer means, and the tensors that it must have."""

    model: str
    values: Values
    decode: Callable[[Tensors], Result]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What a client allows: seconds for a request, requests at a time, seconds between two pieces of a stream."""

    timeout: float
    max_in_flight: int
    idle_timeout: float

    def __post_init__(self) -> None:
        check_seconds("timeout", self.timeout)
        check_seconds("idle_timeout", self.idle_timeout)
        if not isinstance(self.max_in_flight, int) or self.max_in_flight < 1:
            raise UsageError(f"With {self.max_in_flight} requests in flight nothing is sent.", "Give at least 1.")


class Session:
    """A connection in use, by one way of waiting."""

    def __init__(self, transport: Transport, waiting: Waiting, limits: Limits, policy: RetryPolicy) -> None:
        self.transport = transport
        self.limits = limits
        self.truncations = Truncations()
        self.retries = Retries(policy, waiting.sleep)
        self._waiting = waiting
        self._models: dict[str, ModelMetadata] = {}
        self._process = os.getpid()
        self._closed = False

    async def ask(self, make: Callable[[Item], Call[Result]], item: Item, timeout: float | None) -> Result:
        """The answer to the question that MAKE makes of ITEM."""
        deadline = self.deadline(timeout)
        call = make(item)
        result = await self.retries.carry_out(partial(self._attempt, call, deadline), deadline)
        self.truncations.note(call.model, getattr(result, "truncated_tokens", 0))
        return result

    async def ask_all(
        self, make: Callable[[Item], Call[Result]], items: Iterable[Item], timeout: float | None
    ) -> list[Result]:
        """The answers to many questions, in order; raises the first error with its index."""
        return await many.results(self._works(make, items, timeout), *self._crew())

    async def ask_each(
        self, make: Callable[[Item], Call[Result]], items: Iterable[Item], timeout: float | None
    ) -> list[Result | HfxError]:
        """The answers to many questions, in order, with errors in the places of those that failed."""
        return await many.outcomes(self._works(make, items, timeout), *self._crew())

    def iterate(
        self, make: Callable[[Item], Call[Result]], items: Iterable[Item], timeout: float | None
    ) -> AsyncGenerator[Result | HfxError, None]:
        """As `ask_each`, one by one; ITEMS are read as far as answers are."""
        return many.in_order(self._works(make, items, timeout), *self._crew())

    async def describe(self, name: str, deadline: Deadline) -> ModelMetadata:
        """What model NAME takes and gives, asked once."""
        self.check_open()
        if name not in self._models:
            check_text(name, "model's name")
            self._models[name] = await self.explained(
                name, "", deadline, self.transport.metadata(name, deadline.left())
            )
        return self._models[name]

    async def request(self, call: Call[Any], deadline: Deadline) -> Request:
        """CALL as tensors, checked against the model. Raises UsageError for what does not fit."""
        model = await self.fitting(call, deadline)
        from hfx.client.tensors import to_tensors

        values = dict(call.values)
        if TIMEOUT_MS in model.input_types and TIMEOUT_MS not in values:
            values[TIMEOUT_MS] = [min(max(math.ceil(1000 * deadline.left()), 1), INT32_MAX)]
        inputs = to_tensors(values, model.input_types)
        return Request(call.model, inputs, model.outputs, secrets.token_hex(6), deadline.left())

    async def fitting(self, call: Call[Any], deadline: Deadline) -> ModelMetadata:
        """The model that CALL is for. Raises UsageError if it does not take what CALL gives, or gives what it needs."""
        try:
            return await self._fitting(call, deadline)
        except UsageError:
            if self._models.pop(call.model, None) is None:
                raise
            return await self._fitting(call, deadline)  # it may have been exported anew since it was asked

    async def explained(
        self, model: str, request_id: str, deadline: Deadline, sent: Coroutine[Any, Any, Result]
    ) -> Result:
        """What SENT returns; an error of the server gets its request's name and, where possible, its reason."""
        try:
            return await sent
        except ServerError as error:
            reason = await self._reason(error, model, deadline)
            reason.model, reason.request_id = model, request_id
            if isinstance(reason, RequestRefused):
                self._models.pop(model, None)
            raise reason from (error.__cause__ if reason is error else error)

    async def models(self, timeout: float) -> list[str]:
        """The names to ask for, sorted: the ready models without the members of others."""
        self.check_open()
        names = frozenset(await self.transport.models(timeout))
        return sorted(name for name in names if not _is_member(name, names))

    async def is_ready(self) -> bool:
        """Whether the server answers and all of its models are ready."""
        self.check_open()
        return await self.transport.is_ready()

    async def wait_ready(self, timeout: float) -> None:
        """Return when all models are ready; raises RequestTimeout or ServerUnreachable after TIMEOUT seconds."""
        deadline = Deadline(check_seconds("timeout", timeout))
        while not await self.is_ready():
            if deadline.passes_within(READY_POLL_SECONDS):
                if not await self.transport.is_live():
                    raise failures.silence(self.transport.url, timeout)
                raise RequestTimeout(
                    f"Not all models of {self.transport.url} were ready within {timeout:g} s.", "See the server's log."
                )
            await self._waiting.sleep(READY_POLL_SECONDS)

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        await self.transport.close()

    def deadline(self, timeout: float | None) -> Deadline:
        """When a request must be done that begins now; None: the client's timeout."""
        return Deadline(self.limits.timeout if timeout is None else check_seconds("timeout", timeout))

    def check_open(self) -> None:
        """Raise UsageError if the client is closed, or was made before this process was forked."""
        if self._closed:
            raise UsageError(
                f"The connection to {self.transport.url} is closed.", "Make a new Client, or ask inside its `with`."
            )
        if os.getpid() != self._process:
            raise UsageError(
                "This client belongs to another process: gRPC's and HTTP's connections don't survive a fork.",
                "Make a Client in each process.",
            )

    def _works(
        self, make: Callable[[Item], Call[Result]], items: Iterable[Item], timeout: float | None
    ) -> Iterable[Callable[[], Coroutine[Any, Any, Result]]]:
        return (partial(self.ask, make, item, timeout) for item in items)

    def _crew(self) -> tuple[Any, int]:
        self.check_open()
        return self._waiting.crew(self.limits.max_in_flight), self.limits.max_in_flight

    async def _attempt(self, call: Call[Result], deadline: Deadline) -> Result:
        request = await self.request(call, deadline)
        return await self.explained(call.model, request.id, deadline, self._answer(call, request))

    async def _answer(self, call: Call[Result], request: Request) -> Result:
        return call.decode(await self.transport.infer(request))

    async def _fitting(self, call: Call[Any], deadline: Deadline) -> ModelMetadata:
        model = await self.describe(call.model, deadline)
        check_outputs(model, call.needs)
        check_values(model, call.values)
        return model

    async def _reason(self, error: ServerError, model: str, deadline: Deadline) -> ServerError:
        if self._closed:
            return failures.closed(self.transport.url)
        if isinstance(error, RequestTimeout):
            if not await self.transport.is_live():
                return failures.silence(self.transport.url, deadline.seconds)
            if deadline.passes_within(CLOCK_SECONDS):
                return failures.lateness(self.transport.url, deadline.seconds, error.status)
        if isinstance(error, ModelUnknown):
            try:
                return failures.unknown(error, self.transport.url, model, await self.models(PROBE_SECONDS))
            except ServerError:
                return error
        return error


def check_seconds(name: str, seconds: float) -> float:
    """SECONDS when it is a positive number; raises UsageError otherwise."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise UsageError(f"The {name} is {seconds!r}: that can't be kept.", "Give a positive number of seconds.")
    return seconds


def _is_member(name: str, names: Collection[str]) -> bool:
    return any(name.endswith(suffix) and name.removesuffix(suffix) in names for suffix in MEMBER_SUFFIXES)
