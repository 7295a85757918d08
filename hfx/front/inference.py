"""Calls of models for one client of the front, over Triton's HTTP. They end when the client disconnects."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import numpy as np

from hfx import names
from hfx.client import calls, tensors
from hfx.client.calls import Call
from hfx.client.results import Generation, Piece
from hfx.client.settings import GenerationSettings
from hfx.client.tensors import Array, to_tensors
from hfx.front.catalog import OK, Catalog, ServedModel
from hfx.front.guard import HEAD_LENGTH, Disconnected
from hfx.front.infer_request import SEQUENCE_ID, ending
from hfx.front.keys import Caller
from hfx.front.refusals import RETRY, Header, Refusal, refused_by_model, renamed
from hfx.front.upstream import LOST, Upstream, UpstreamConnection, UpstreamLost
from hfx.metadata import Values, check_values
from hfx.names import GENERATION_TASKS, TEXT_INPUT
from hfx.python_backends.engine.generation_settings import SETTINGS
from hfx.python_backends.errors import TOO_LONG
from hfx.tasks import TASKS

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection
    from hfx.front.model_files import ModelFiles

Result = TypeVar("Result")
READ = {TEXT_INPUT, names.QUERY, names.QUESTION, names.CONTEXT}  # the inputs whose texts a model reads
MANY = 32  # values; a request with as many or more is ended in Triton if its client disconnects
ALONE = 1024  # characters; a longer text that may be read in windows is a request of its own
PARALLEL = 32  # requests to Triton at a time for one request of a client
EVENT_END = b"\n\n"
CLOSE = (b"connection", b"close")
_ids = (f"front-{secrets.token_hex(6)}-{number}" for number in itertools.count())
_cancelling: set[asyncio.Task[None]] = set()


@dataclass(eq=False)
class Inference:
    """Calls the models behind `upstream` for `client`. When the client disconnects, its connections to Triton close.

    `trace` are the headers with which Triton continues a trace. If the tokens per minute of `caller` are limited, the
    tokens of each request are counted with the tokenizers in `files`, and taken from the caller's allowance before the
    request is sent. `held` is the total that was taken. `model` is the name of the model that was called last.
    `input_tokens` and `output_tokens` count the tokens so far, of generated texts and of other texts that were counted.
    `names` are the caller's names of fields by hfx's own names, for the refusals of models. `truncated_tokens` counts
    the tokens, at least, that models have cut off the texts so far; the field `uncut` (empty: none) forbids that.
    """

    upstream: Upstream
    catalog: Catalog
    files: ModelFiles
    client: ClientConnection
    caller: Caller
    trace: Sequence[Header]
    names: dict[str, str] = field(default_factory=dict)
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    held: int = 0
    truncated_tokens: int = 0
    uncut: str = ""

    def has_left(self) -> bool:
        """Return whether the client has closed its connection."""
        return self.client.has_left

    async def rows(self, model: ServedModel, requests: Sequence[Call[Result]]) -> list[Result]:
        """Return the results of calls with the same settings, in order.

        Each request to Triton has as many of the calls as rows as the model takes.
        """
        self.model = model.name
        if self.caller.tokens is not None:
            self.input_tokens += await self._hold(model, [call.values for call in requests])
        results = await in_order([self._batch(model, batch) for batch in _batches(model, requests)])
        if self.uncut and self.truncated_tokens:
            message = f"The texts have {self.truncated_tokens} tokens more than the model reads. Send less, or allow"
            raise Refusal(413, f"{message} {self.uncut}.", param=self.uncut, reason=TOO_LONG.name)
        return [result for batch in results for result in batch]

    async def generate(self, model: ServedModel, text: str, settings: GenerationSettings) -> Generation:
        """Generate a text, and return it as a whole."""
        call = calls.generate(model.name, settings)(text)
        async with self._generation(model, call, "/generate", ()) as connection:
            body = await _read_all(connection)
        if connection.status != OK:
            raise self._failure(connection, body)
        generation = call.decode(self._event(body, model))
        self.truncated_tokens += generation.truncated_tokens
        self.input_tokens += generation.input_tokens
        self.output_tokens += generation.output_tokens
        return generation

    async def pieces(self, model: ServedModel, text: str, settings: GenerationSettings) -> AsyncGenerator[Piece, None]:
        """Yield a generated text in pieces, as they arrive."""
        call = calls.stream(model.name, text, settings)
        # Triton 2.51 holds the request and its model until its connection ends.
        async with self._generation(model, call, "/generate_stream", (CLOSE,)) as connection:
            content = await connection.read()
            is_whole, written, read = False, 0, 0
            if connection.status != OK:
                raise self._failure(connection, content + await _read_all(connection))
            while True:
                *events, content = content.split(EVENT_END)
                for event in events:
                    piece = call.decode(self._event(event, model))
                    self.input_tokens += piece.input_tokens - read
                    self.output_tokens += piece.output_tokens - written
                    read, written = piece.input_tokens, piece.output_tokens
                    is_whole = bool(piece.finish_reason)
                    yield piece
                if connection.is_read:
                    break
                content += await connection.read()
        if not is_whole:
            raise _lost()

    def _event(self, content: bytes, model: ServedModel) -> dict[str, Array]:
        """Return the tensors in an answer of the generate extension, with or without the `data:` of a stream."""
        line = content.decode().strip()
        line = line if line.startswith(tensors.EVENT) else tensors.EVENT + line
        event = tensors.decode_event(line, model.metadata.outputs)
        if isinstance(event, dict):
            return event
        raise renamed(refused_by_model("", str(event)), self.names)

    def _failure(self, connection: UpstreamConnection, body: bytes) -> Refusal:
        return renamed(refused_by_model(str(connection.status), tensors.error_text(body)), self.names)

    async def _hold(self, model: ServedModel, rows: Sequence[Values], more: int = 0) -> int:
        """Take the tokens of the texts in `rows`, and `more` tokens, from the caller's allowance.

        Return the number of the texts' tokens. Raises Refusal (429).
        """
        tokens = 0
        for values in rows:
            tokens += len(values.get(names.PROMPT_TOKEN_IDS, ()))
            labels = values.get(names.CANDIDATE_LABELS, ())
            times = len(labels) if model.kind is names.Kind.ZERO_SHOT else 1  # NLI reads the text for each label
            for name in READ & values.keys():
                tokens += times * await self.files.count(model, list(map(str, values[name])), self.has_left)
            if labels:
                tokens += await self.files.count(model, list(map(str, labels)), self.has_left)
        self.caller.hold(time.monotonic(), tokens + more)
        self.held += tokens + more
        return tokens

    async def _batch(self, model: ServedModel, batch: Sequence[Call[Result]]) -> list[Result]:
        for call in batch:
            call.check(model.metadata)
        rows = [to_tensors(call.values, model.metadata.input_types) for call in batch]
        inputs = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        name = request_name() if sum(array.size for array in inputs.values()) >= MANY else ""
        body, headers = tensors.encode_infer("", inputs, {SEQUENCE_ID: name} if name else None)
        forwarded = [(HEAD_LENGTH, headers[tensors.HEADER_LENGTH].encode()), *self.trace]
        path = f"/v2/models/{quote(model.name, safe='')}/infer"
        with ended_if_left(self.upstream, self.catalog, self.client, model.name, name):
            async with _opened(self.upstream, self.client, b"POST", path, body, forwarded) as connection:
                content = await _read_all(connection)
        if connection.status != OK:
            raise self._failure(connection, content)
        received = {name.decode(): value.decode() for name, value in connection.headers}
        outputs = tensors.decode_infer(content, received)
        if names.TRUNCATED_TOKENS in outputs:
            self.truncated_tokens += int(outputs[names.TRUNCATED_TOKENS].sum())
        return [
            call.decode({name: array[row : row + 1] for name, array in outputs.items()})
            for row, call in enumerate(batch)
        ]

    @asynccontextmanager
    async def _generation(
        self, model: ServedModel, call: Call[Any], path: str, headers: Sequence[Header]
    ) -> AsyncIterator[UpstreamConnection]:
        """Send a request to the engine of `model`, and cancel it if this ends before the answer is complete."""
        check_values(model.metadata, {name: items for name, items in call.values.items() if name != names.STREAM})
        if self.caller.tokens is not None:
            defaults, limit = self.files.generation(model)["defaults"], names.MAX_TOKENS
            default = defaults.get(limit, SETTINGS[limit].default)
            await self._hold(model, [call.values], int(call.values.get(limit, [default])[0]))
        self.model, request_id = model.name, next(_ids)
        body = tensors.encode_generate(request_id, call.values)
        engine = f"/v2/models/{quote(model.name, safe='')}{names.STREAM_SUFFIX}"
        complete = False
        try:
            async with _opened(
                self.upstream, self.client, b"POST", engine + path, body, [*headers, *self.trace]
            ) as connection:
                yield connection
                complete = connection.complete
        finally:
            if not complete:
                self._cancel(engine, request_id)

    def _cancel(self, engine: str, request_id: str) -> None:
        """Cancel a request by its id. Triton's HTTP does not notice a disconnect before the first piece (2.51)."""

        async def send() -> None:
            body = b'{"%b": "", "%b": "%b"}' % (TEXT_INPUT.encode(), names.CANCEL_REQUEST.encode(), request_id.encode())
            await fetch(self.upstream, "POST", f"{engine}/generate", body)

        _in_background(send())


def _batches(model: ServedModel, requests: Sequence[Call[Result]]) -> list[list[Call[Result]]]:
    """Divide calls into requests to Triton, in order.

    The rows of a request are padded to the largest number of windows, so that a text of many windows is alone.
    """
    batches: list[list[Call[Result]]] = []
    was_alone = True
    for call in requests:
        has_windows = names.LONG in call.values or model.task is names.Task.TOKEN_CLASSIFICATION
        is_alone = has_windows and len(str(call.values[TEXT_INPUT][0])) > ALONE
        if is_alone or was_alone or len(batches[-1]) == model.batch:
            batches.append([])
        batches[-1].append(call)
        was_alone = is_alone
    return batches


def request_name() -> str:
    """Return a name for a request that `ended_if_left` may have to end."""
    return next(_ids)


@contextmanager
def ended_if_left(
    upstream: Upstream, catalog: Catalog, client: ClientConnection, model: str, name: str
) -> Iterator[None]:
    """End the request `name` to an encoder if its `client` disconnects. Do nothing if `name` is empty."""
    try:
        yield
    except BaseException:
        if name and client.has_left:
            _in_background(_end(upstream, catalog, model, name))
        raise


async def _end(upstream: Upstream, catalog: Catalog, model: str, name: str) -> None:
    served = await catalog.model(model)
    if served.task not in GENERATION_TASKS:
        body = ending(name, TASKS[served.task].row.needed_by(served.metadata.input_types))
        await fetch(upstream, "POST", f"/v2/models/{quote(model, safe='')}/infer", body)


def _in_background(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    _cancelling.add(task)
    task.add_done_callback(_forget)


async def fetch(upstream: Upstream, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send a request of the front itself, and return the status and body of Triton's answer. Raises Refusal (503)."""
    async with _opened(upstream, None, method.encode(), path, body, ()) as connection:
        content = await _read_all(connection)
    return connection.status, content


@asynccontextmanager
async def _opened(
    upstream: Upstream,
    client: ClientConnection | None,
    method: bytes,
    path: str,
    body: bytes,
    headers: Sequence[Header],
) -> AsyncIterator[UpstreamConnection]:
    """Send a request and yield its connection. Raises Refusal (503), and Disconnected if `client` has disconnected."""
    try:
        async with upstream.sent(method, path.encode(), body, headers, client) as connection:
            yield connection
    except UpstreamLost:
        if client is not None and client.has_left:
            raise Disconnected from None
        raise _lost() from None


def _lost() -> Refusal:
    return Refusal(503, f"{LOST} Send the request again.", [RETRY])


async def in_order(coroutines: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run `coroutines`, PARALLEL at a time, and return their results in order. The first failure ends them all."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    free = asyncio.Semaphore(PARALLEL)

    async def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
        async with free:
            return await coroutine

    tasks = [asyncio.create_task(run(coroutine)) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for coroutine in coroutines:
            coroutine.close()


async def interleaved(streams: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Yield the pieces of all `streams` as they arrive, each with the number of its stream.

    The first failure ends them all.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    arrived: asyncio.Queue[tuple[int, Piece] | BaseException | None] = asyncio.Queue(len(streams))

    async def read(number: int, stream: AsyncGenerator[Piece, None]) -> None:
        try:
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    await arrived.put((number, piece))
            await arrived.put(None)
        except Exception as failure:
            await arrived.put(failure)

    tasks = [asyncio.create_task(read(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            item = await arrived.get()
            if isinstance(item, BaseException):
                raise item
            left -= item is None
            if item is not None:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_all(connection: UpstreamConnection) -> bytes:
    pieces = []
    while not connection.is_read:
        pieces.append(await connection.read())
    return b"".join(pieces)


def _forget(task: asyncio.Task[None]) -> None:
    _cancelling.discard(task)
    if not task.cancelled():
        task.exception()  # ignored: a server that does not answer has no request to cancel
