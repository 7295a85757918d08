"""Base classes of the two clients, with what differs between them: connections, concurrent calls and pauses.

The methods of both clients are in `async_client.py`, from which `make docs` generates `client.py` by removing `async`
and `await`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hfx.answering import at_index, map_all, ordered_map, pause
from hfx.client.address import Tls, checked_headers, parse_address
from hfx.client.calls import Call, Seconds
from hfx.client.retries import RetryPolicy, policy_of
from hfx.client.session import Limits, Session
from hfx.client.transport import Transport, run
from hfx.errors import HfxError

if TYPE_CHECKING:
    import asyncio

Item = TypeVar("Item")
Result = TypeVar("Result")


async def _block(seconds: float) -> None:
    pause(seconds)


async def _suspend(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def _connect(
    url: str, headers: Mapping[str, str] | None, token: str | None, tls: Tls | None, *, for_asyncio: bool
) -> Transport:
    """Return a blocking transport, or a transport for asyncio. Only here is the library of the protocol imported."""
    address = parse_address(url)
    sent = checked_headers(address, headers, token, tls)
    if address.protocol == "http":
        from hfx.client.http_transport import open_transport
    else:
        from hfx.client.grpc_transport import open_transport
    return open_transport(address, sent, tls, for_asyncio=for_asyncio)


class BaseClient:
    """The constructor of both clients, which makes the session with a server."""

    _for_asyncio: ClassVar[bool]

    def __init__(
        self,
        url: str = "127.0.0.1:8001",
        *,
        timeout: float = 60.0,
        max_in_flight: int = 32,
        idle_timeout: float = 30.0,
        retries: RetryPolicy | int = 2,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        tls: Tls | None = None,
        transport: Transport | None = None,
    ) -> None:
        limits, policy = Limits(timeout, max_in_flight, idle_timeout), policy_of(retries)
        transport = transport or _connect(url, headers, token, tls, for_asyncio=self._for_asyncio)
        self.url = transport.url
        self.max_in_flight = max_in_flight
        self._session = Session(transport, _suspend if self._for_asyncio else _block, limits, policy)


class BlockingBase(BaseClient):
    """Concurrent calls in threads. Ctrl-C, or the end of an iteration, cancels them."""

    _for_asyncio = False

    def each(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result | HfxError]:
        """Yield the result of `call`, or its HfxError, for each item in order.

        `call` may be a method of this client. Up to `max_in_flight` calls run at a time, in threads. The threads also
        read `items`, and read at most as many ahead.
        """
        self._session.check_open()
        with closing(ordered_map(call, items, self.max_in_flight)) as outcomes:
            for _, outcome in outcomes:
                yield outcome

    def _call_all(self, make: Callable[[Item], Call[Any]], items: Iterable[Item], timeout: Seconds) -> list[Any]:
        self._session.check_open()
        return map_all(lambda item: run(self._session.call(make(item), timeout)), items, self.max_in_flight)


class AsyncBase(BaseClient):
    """Concurrent calls in tasks of the event loop. They are cancelled with the task that awaits their results."""

    _for_asyncio = True

    async def each(
        self, call: Callable[[Item], Awaitable[Result]], items: Iterable[Item]
    ) -> AsyncGenerator[Result | HfxError, None]:
        """Yield the result of `call`, or its HfxError, for each item in order.

        `call` may be a method of this client. Up to `max_in_flight` calls run at a time, and at most as many items are
        read ahead.
        """
        import asyncio

        self._session.check_open()
        tasks: deque[asyncio.Task[Result | HfxError]] = deque()
        try:
            for item in items:
                tasks.append(asyncio.create_task(_outcome(call, item)))
                if len(tasks) == self.max_in_flight:
                    yield await tasks[0]
                    tasks.popleft()
            while tasks:
                yield await tasks[0]
                tasks.popleft()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call_all(self, make: Callable[[Item], Call[Any]], items: Iterable[Item], timeout: Seconds) -> list[Any]:
        import asyncio

        self._session.check_open()
        room = asyncio.Semaphore(self.max_in_flight)

        async def call(index: int, item: Item) -> Any:
            try:
                return await self._session.call(make(item), timeout)
            except HfxError as error:
                raise at_index(index, error) from error
            finally:
                room.release()

        tasks = []
        try:
            async with asyncio.TaskGroup() as group:
                for index, item in enumerate(items):
                    await room.acquire()
                    tasks.append(group.create_task(call(index, item)))
        except BaseExceptionGroup as failed:  # the first failure has cancelled the others
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
        return [task.result() for task in tasks]


async def _outcome(call: Callable[[Item], Awaitable[Result]], item: Item) -> Result | HfxError:
    try:
        return await call(item)
    except HfxError as error:
        return error
