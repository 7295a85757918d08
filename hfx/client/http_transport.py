"""Requests to Triton's HTTP endpoints, and their failures as errors of hfx."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx

from hfx.client import errors, http_messages
from hfx.client.address import Address, Tls
from hfx.client.http_connections import TIMEOUTS, AsyncConnection, BlockingConnection
from hfx.client.retries import Deadline
from hfx.client.tensors import Array
from hfx.client.transport import PROBE_SECONDS, TASK, Request, Stream, Transport
from hfx.errors import ServerError
from hfx.metadata import ModelMetadata
from hfx.names import TEXT_OUTPUT

OK = 200
NO_HEADERS: Mapping[str, str] = {}


def open_transport(address: Address, headers: Mapping[str, str], tls: Tls | None, *, for_asyncio: bool) -> Transport:
    """A transport over connections that block, or over those of asyncio."""
    connection = AsyncConnection if for_asyncio else BlockingConnection
    return _HttpTransport(connection(address, headers, tls), address.url)


class _HttpTransport:
    def __init__(self, connection: BlockingConnection | AsyncConnection, url: str) -> None:
        self.url = url
        self._connection = connection

    async def infer(self, request: Request) -> dict[str, Array]:
        body, headers = http_messages.encode_infer(request)
        answer, content = await self._fetch(_path(request.model, "/infer"), request.timeout, body, headers)
        return http_messages.decode_infer(content, answer.headers)

    def stream(self, request: Request) -> Stream:
        """The request is sent with the first read."""
        return _HttpStream(self._connection, self.url, request)

    async def is_live(self) -> bool:
        return await self._is("live")

    async def is_ready(self) -> bool:
        return await self._is("ready")

    async def models(self, timeout: float) -> list[str]:
        headers = {"content-type": http_messages.JSON}
        _, content = await self._fetch("/v2/repository/index", timeout, b'{"ready":true}', headers)
        return http_messages.decode_index(content)

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        _, content = await self._fetch(_path(model), timeout)
        found = http_messages.decode_metadata(model, content)
        if not any(tensor.name == TEXT_OUTPUT for tensor in found.outputs):
            return found
        _, config = await self._fetch(_path(model, "/config"), timeout)
        return replace(found, task=http_messages.decode_parameter(config, TASK))

    async def close(self) -> None:
        await self._connection.close()

    async def _is(self, state: str) -> bool:
        try:
            await self._fetch(f"/v2/health/{state}", PROBE_SECONDS)
        except ServerError:
            return False
        return True

    async def _fetch(
        self, path: str, timeout: float, body: bytes | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> tuple[httpx.Response, bytes]:
        """The answer and its body. Raises ServerError."""
        deadline = Deadline(timeout)
        with _translated(self.url, timeout):
            answer = await self._connection.open(path, body, headers, timeout)
            try:
                content = await self._connection.read(answer, deadline.left())
            finally:
                await self._connection.leave(answer)
        if answer.status_code != OK:
            raise errors.failure(str(answer.status_code), http_messages.error_text(content), self.url)
        return answer, content


class _HttpStream:
    def __init__(self, connection: BlockingConnection | AsyncConnection, url: str, request: Request) -> None:
        self._connection = connection
        self._url = url
        self._request = request
        self._deadline = Deadline(request.timeout)
        self._answer: httpx.Response | None = None
        self._lines: Any = None

    async def read(self, timeout: float) -> dict[str, Array] | None:
        if self._deadline.passes_within(0):
            raise errors.timed_out(self._url, self._request.timeout, "")
        left = self._deadline.left()
        with _translated(self._url, self._request.timeout, idle=timeout if timeout < left else None):
            found = await self._event(min(timeout, left))
        if isinstance(found, str):
            raise errors.failure("", found, self._url)
        return found

    async def close(self) -> None:
        if self._answer is not None:
            await self._connection.leave(self._answer)

    def cancel(self) -> None:
        if self._answer is not None:
            self._connection.cancel(self._answer)

    async def _event(self, timeout: float) -> dict[str, Array] | str | None:
        """The tensors of the next event, its error's text, or None at the end."""
        if self._answer is None:
            body, headers = http_messages.encode_generate(self._request)
            path = _path(self._request.model, "/generate_stream")
            self._answer = await self._connection.open(path, body, headers, timeout)
            if self._answer.status_code != OK:
                content = await self._connection.read(self._answer, timeout)
                raise errors.failure(str(self._answer.status_code), http_messages.error_text(content), self._url)
            self._lines = self._connection.lines(self._answer)
        while (line := await self._connection.next_line(self._lines, timeout)) is not None:
            event = http_messages.decode_event(line, self._request.outputs)
            if event is not None:
                return event
        return None


def _path(model: str, verb: str = "") -> str:
    return f"/v2/models/{quote(model, safe='')}{verb}"


@contextmanager
def _translated(url: str, timeout: float, idle: float | None = None) -> Iterator[None]:
    """Raise what the connection raises as errors of hfx; `idle` is the timeout if the deadline is not."""
    try:
        yield
    except TIMEOUTS:
        raise (errors.timed_out(url, timeout, "") if idle is None else errors.idle(url, idle)) from None
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise errors.connection_failed(str(error) or type(error).__name__, url) from error
