"""Requests to Triton's HTTP endpoints, and their failures as errors of hfx.

The connection blocks or is asyncio's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote

import httpx

from hfx.client import errors
from hfx.client.http_connections import (
    TIMEOUTS,
    AsyncConnection,
    AsyncLines,
    BlockingConnection,
    BlockingLines,
    HttpRequest,
    HttpResponse,
)
from hfx.client.http_messages import (
    JSON,
    decode_event,
    decode_index,
    decode_infer,
    decode_metadata,
    decode_parameter,
    encode_generate,
    encode_infer,
    error_text,
)
from hfx.client.retries import Deadline
from hfx.client.tensors import Array
from hfx.client.transport import PROBE_SECONDS, TASK, Request, Stream
from hfx.errors import ServerError
from hfx.metadata import ModelMetadata
from hfx.names import TEXT_OUTPUT

OK = 200


class HttpTransport:
    """Requests over HTTP connections."""

    def __init__(self, connection: BlockingConnection | AsyncConnection, url: str) -> None:
        self.url = url
        self._connection = connection

    async def infer(self, request: Request) -> dict[str, Array]:
        """The output tensors, by name."""
        body, headers = encode_infer(request)
        answer = await self._fetch(_sent(request.model, "infer", body, headers), request.timeout)
        return decode_infer(answer.body, answer.headers)

    def stream(self, request: Request) -> Stream:
        """The answers of a decoupled model; the request is sent with the first read."""
        body, headers = encode_generate(request)
        lines = self._connection.lines(_sent(request.model, "generate_stream", body, headers))
        return _HttpStream(lines, self.url, request)

    async def is_live(self) -> bool:
        """Whether the server answers."""
        return await self._is("live")

    async def is_ready(self) -> bool:
        """Whether the server answers, and all of its models are ready."""
        return await self._is("ready")

    async def models(self, timeout: float) -> list[str]:
        """The names of the ready models."""
        asked = HttpRequest("/v2/repository/index", b'{"ready":true}', (("content-type", JSON),))
        return decode_index((await self._fetch(asked, timeout)).body)

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        """The inputs and outputs of `model`; of a generator, its task."""
        found = decode_metadata(model, (await self._fetch(_sent(model, ""), timeout)).body)
        if not any(tensor.name == TEXT_OUTPUT for tensor in found.outputs):
            return found
        config = await self._fetch(_sent(model, "config"), timeout)
        return replace(found, task=decode_parameter(config.body, TASK))

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    async def _is(self, state: str) -> bool:
        try:
            return (await self._connection.fetch(HttpRequest(f"/v2/health/{state}"), PROBE_SECONDS)).status == OK
        except (httpx.HTTPError, TimeoutError):
            return False

    async def _fetch(self, sent: HttpRequest, timeout: float) -> HttpResponse:
        try:
            answer = await self._connection.fetch(sent, timeout)
        except TIMEOUTS:
            raise errors.lateness(self.url, timeout, "") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise errors.broken(str(error) or type(error).__name__, self.url) from error
        if answer.status != OK:
            raise _refused(answer, self.url)
        return answer


class _HttpStream:
    def __init__(self, lines: BlockingLines | AsyncLines, url: str, request: Request) -> None:
        self._lines = lines
        self._url = url
        self._request = request
        self._deadline = Deadline(request.timeout)
        self._opened = False

    async def read(self, timeout: float) -> dict[str, Array] | None:
        left = self._deadline.left()
        if self._deadline.passes_within(0):
            raise errors.lateness(self._url, self._request.timeout, "")
        try:
            found = await self._event(min(timeout, left))
        except TIMEOUTS:
            if timeout < left:
                raise errors.stillness(self._url, timeout) from None
            raise errors.lateness(self._url, self._request.timeout, "") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise errors.broken(str(error) or type(error).__name__, self._url) from error
        if isinstance(found, str):
            raise errors.failure("", found, self._url)
        return found

    async def close(self) -> None:
        await self._lines.close()

    def cancel(self) -> None:
        self._lines.cancel()

    async def _event(self, timeout: float) -> dict[str, Array] | str | None:
        if not self._opened:
            refusal = await self._lines.open(timeout)
            if refusal is not None:
                raise _refused(refusal, self._url)
            self._opened = True
        while (line := await self._lines.next(timeout)) is not None:
            event = decode_event(line, self._request.outputs)
            if event is not None:
                return event
        return None


def _sent(model: str, verb: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> HttpRequest:
    path = f"/v2/models/{quote(model, safe='')}"
    return HttpRequest(f"{path}/{verb}" if verb else path, body, tuple((headers or {}).items()))


def _refused(answer: HttpResponse, url: str) -> ServerError:
    return errors.failure(str(answer.status), error_text(answer.body), url)
