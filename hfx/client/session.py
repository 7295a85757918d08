"""The session that Client and AsyncClient share: it checks and sends requests, retries them, and explains failures.

Its coroutines run in `transport.run` or in an event loop. A session caches the models' metadata.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from hfx.client import errors
from hfx.client.calls import Call
from hfx.client.retries import Deadline, Retries, RetryPolicy
from hfx.client.transport import PROBE_SECONDS, Request, Transport
from hfx.errors import ModelUnknown, RequestRefused, RequestTimeout, ServerError, UsageError
from hfx.metadata import INT32_MAX, TEMPORARY, ModelMetadata, check_text
from hfx.names import MEMBER_SUFFIXES, MODEL_SHA256, TIMEOUT_MS

Item = TypeVar("Item")
Result = TypeVar("Result")
READY_POLL_SECONDS = 0.1
CLOCK_SECONDS = 0.01  # by how much a timeout may end before the deadline that it was computed from
PACKAGE = "hfx.client"


class TruncationWarning(UserWarning):
    """A text was longer than the model reads, and the rest was left out. Shown once for each model of a client."""


@dataclass(frozen=True)
class Limits:
    """The limits of a client: seconds for a request, concurrent requests, seconds between two pieces of a stream."""

    timeout: float
    max_in_flight: int
    idle_timeout: float

    def __post_init__(self) -> None:
        check_seconds("timeout", self.timeout)
        check_seconds("idle_timeout", self.idle_timeout)
        if not isinstance(self.max_in_flight, int) or self.max_in_flight < 1:
            raise UsageError(f"With {self.max_in_flight} requests in flight nothing is sent.", "Give at least 1.")


class Session:
    """A session with a server. `sleep` blocks for a blocking transport, and suspends the task for one of asyncio."""

    def __init__(
        self,
        transport: Transport,
        sleep: Callable[[float], Coroutine[Any, Any, None]],
        limits: Limits,
        policy: RetryPolicy,
    ) -> None:
        self.transport = transport
        self.limits = limits
        self.retries = Retries(policy, sleep)
        self._sleep = sleep
        self._truncated: set[str] = set()
        self._models: dict[str, ModelMetadata] = {}
        self._process = os.getpid()
        self._closed = False

    async def call(self, call: Call[Result], timeout: float | None) -> Result:
        """Send `call`, and return the decoded answer within `timeout` seconds (None: the client's timeout)."""
        deadline = self.deadline(timeout)
        result = await self.retries.call(partial(self._attempt, call, deadline), deadline)
        self.warn_of_truncation(call.model, getattr(result, "truncated_tokens", 0))
        return result

    async def metadata(self, name: str, timeout: float | None = None) -> ModelMetadata:
        """Return the input and output tensors of model `name`, which are requested once and then cached."""
        deadline = self.deadline(timeout)
        return await self.retries.call(lambda: self._describe(name, deadline), deadline)

    async def model_sha256(self, name: str) -> str:
        """Return the SHA-256 of the model's files, read from its configuration each time; empty if it is not there."""
        deadline = self.deadline(None)
        check_text(name, "the model's name")

        async def read() -> str:
            sent = self.transport.parameter(name, MODEL_SHA256, deadline.left())
            return await self.explain_errors(name, "", deadline, sent)

        return await self.retries.call(read, deadline)

    async def models(self) -> list[str]:
        """Return the sorted names of the ready models that can be requested, without the members of other models."""
        deadline = self.deadline(None)
        return await self.retries.call(
            lambda: self.explain_errors("", "", deadline, self._names(deadline.left())), deadline
        )

    async def request(self, call: Call[Any], deadline: Deadline) -> Request:
        """Convert `call` to tensors. Raises UsageError for values that the model does not take."""
        model = await self.checked_model(call, deadline)
        from hfx.client.tensors import to_tensors

        values = dict(call.values)
        if TIMEOUT_MS in model.input_types and TIMEOUT_MS not in values:
            values[TIMEOUT_MS] = [min(max(math.ceil(1000 * deadline.left()), 1), INT32_MAX)]
        inputs = to_tensors(values, model.input_types)
        return Request(call.model, inputs, model.outputs, secrets.token_hex(6), deadline.left())

    async def checked_model(self, call: Call[Any], deadline: Deadline) -> ModelMetadata:
        """Return the model of `call`. Raises UsageError if it does not take these inputs, or lacks a needed output."""
        try:
            return await self._checked_model(call, deadline)
        except UsageError:
            if self._models.pop(call.model, None) is None:
                raise
            return await self._checked_model(call, deadline)  # the model may have been replaced in the meantime

    async def explain_errors(
        self, model: str, request_id: str, deadline: Deadline, sent: Coroutine[Any, Any, Result]
    ) -> Result:
        """Return the result of `sent`. A ServerError gets the model, the request's id and, if known, a better text."""
        try:
            return await sent
        except ServerError as error:
            reason = await self._reason(error, model, deadline)
            reason.model, reason.request_id = model, request_id
            if isinstance(reason, RequestRefused):
                self._models.pop(model, None)
            raise reason from (error.__cause__ if reason is error else error)

    async def is_ready(self) -> bool:
        """Return whether the server answers and all models are ready; raises ServerError if it refuses the token."""
        self.check_open()
        return await self.transport.is_ready()

    async def wait_ready(self, timeout: float) -> None:
        """Return when all models are ready; raises RequestTimeout or ServerUnreachable after `timeout` seconds."""
        deadline = Deadline(check_seconds("timeout", timeout))
        while not await self.is_ready():
            if deadline.passes_within(READY_POLL_SECONDS):
                if not await self.transport.is_live():
                    raise errors.no_answer(self.transport.url, timeout)
                raise RequestTimeout(
                    f"Not all models of {self.transport.url} were ready within {timeout:g} s.", "See the server's log."
                )
            await self._sleep(READY_POLL_SECONDS)

    async def close(self) -> None:
        """Close the connection; requests in flight end with an error."""
        self._closed = True
        await self.transport.close()

    def deadline(self, timeout: float | None) -> Deadline:
        """Return the deadline of a request that begins now (None: the client's timeout)."""
        return Deadline(self.limits.timeout if timeout is None else check_seconds("timeout", timeout))

    def check_open(self) -> None:
        """Raise UsageError if the client is closed, or was made before this process was forked."""
        if self._closed:
            raise UsageError(
                f"The connection to {self.transport.url} is closed.",
                "Make a new Client, or call it inside its `with` block.",
            )
        if os.getpid() != self._process:
            raise UsageError(
                "This client belongs to another process: gRPC's and HTTP's connections don't survive a fork.",
                "Make a Client in each process.",
            )

    def warn_of_truncation(self, model: str, tokens: int) -> None:
        """Warn, once for each model, that `tokens` tokens of a text were left out."""
        if not tokens or model in self._truncated:
            return
        self._truncated.add(model)
        warnings.warn(
            f"A text is longer than the model {model!r} reads: {tokens} tokens or more were left out. Later ones are "
            "not warned of: see truncated_tokens of each result.",
            TruncationWarning,
            stacklevel=_callers_level(),
        )

    async def _attempt(self, call: Call[Result], deadline: Deadline) -> Result:
        request = await self.request(call, deadline)
        return await self.explain_errors(call.model, request.id, deadline, self._answer(call, request))

    async def _answer(self, call: Call[Result], request: Request) -> Result:
        return call.result(await self.transport.infer(request))

    async def _describe(self, name: str, deadline: Deadline) -> ModelMetadata:
        self.check_open()
        if name not in self._models:
            check_text(name, "the model's name")
            sent = self.transport.metadata(name, deadline.left())
            self._models[name] = await self.explain_errors(name, "", deadline, sent)
        return self._models[name]

    async def _names(self, timeout: float) -> list[str]:
        self.check_open()
        names = frozenset(name for name in await self.transport.models(timeout) if TEMPORARY not in name)
        return sorted(name for name in names if not _is_member(name, names))

    async def _checked_model(self, call: Call[Any], deadline: Deadline) -> ModelMetadata:
        model = await self._describe(call.model, deadline)
        call.check(model)
        return model

    async def _reason(self, error: ServerError, model: str, deadline: Deadline) -> ServerError:
        if self._closed:
            return errors.client_closed(self.transport.url)
        if isinstance(error, RequestTimeout):
            if not await self.transport.is_live():
                return errors.no_answer(self.transport.url, deadline.seconds)
            if deadline.passes_within(CLOCK_SECONDS):
                return errors.timed_out(self.transport.url, deadline.seconds, error.status)
        if isinstance(error, ModelUnknown):
            try:
                return errors.unknown_model(error, self.transport.url, model, await self._names(PROBE_SECONDS))
            except ServerError:
                return error
        return error


def check_seconds(name: str, seconds: float) -> float:
    """Return `seconds`. Raises UsageError unless it is a positive number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise UsageError(f"The {name} is {seconds!r}.", "Give a positive number of seconds.")
    return seconds


def _callers_level() -> int:
    """Return the `stacklevel` with which a warning points to the code that called this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def _is_member(name: str, names: Collection[str]) -> bool:
    return any(name.endswith(suffix) and name.removesuffix(suffix) in names for suffix in MEMBER_SUFFIXES)
