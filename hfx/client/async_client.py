"""The asynchronous client: one method a task, typed results, typed errors."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from hfx.answering import at_index
from hfx.client import calls
from hfx.client.address import Tls
from hfx.client.calls import Call, Count, Flag, Many, Preset, Seconds, Texts
from hfx.client.results import Answer, Classification, Entities, Generation, Rank, best_first
from hfx.client.retries import RetryPolicy, policy_of
from hfx.client.session import Limits, Session
from hfx.client.settings import Settings, merged
from hfx.client.streams import AsyncTextStream
from hfx.client.tasks import check_summarizer
from hfx.client.transport import Transport, connect
from hfx.errors import HfxError
from hfx.metadata import ModelMetadata, Values

if TYPE_CHECKING:
    import asyncio

    from hfx.client.calls import Vectors
    from hfx.client.tensors import Array

# A str is an iterable of strings too, which mypy calls an unsafe overlap: the first overload wins, as meant.
# mypy: disable-error-code="overload-overlap"

Item = TypeVar("Item")
Result = TypeVar("Result")


class AsyncClient:
    """As Client, for asyncio: methods are awaited, streams read by `async for`; it belongs to one event loop.

    Tasks share it. A cancelled task cancels its request on the server (over gRPC; over HTTP the timeout ends it).
    """

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
        transport = transport or connect(url, headers, token, tls, for_asyncio=True)
        self.url = transport.url
        self.max_in_flight = max_in_flight
        self._session = Session(transport, _sleep, limits, policy)

    async def is_ready(self) -> bool:
        """Whether the server answers and all of its models are ready; raises ServerError where it refuses the token."""
        return await self._session.is_ready()

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """Return when all models are ready; raises ServerUnreachable or RequestTimeout after `timeout` seconds."""
        await self._session.wait_ready(timeout)

    async def models(self) -> list[str]:
        """The names that can be requested, sorted: the ready models without their members."""
        return await self._session.models()

    async def metadata(self, name: str) -> ModelMetadata:
        """The input and output tensors of a model, requested once."""
        return await self._session.metadata(name)

    async def model_sha256(self, name: str) -> str:
        """The SHA-256 of the files of the model that answers now; empty where the server does not say."""
        return await self._session.model_sha256(name)

    async def each(
        self, call: Callable[[Item], Awaitable[Result]], items: Iterable[Item]
    ) -> AsyncGenerator[Result | HfxError, None]:
        """The result of `call` or its HfxError for each item, in order; `call` is a method of this client, for example.

        `max_in_flight` calls run at a time; so many items are read ahead at most.
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

    async def infer(self, name: str, values: Values, *, timeout: Seconds = None) -> dict[str, Array]:
        """Any model by its tensors: plain values in (a batch dimension is added), output tensors [1, …] out."""
        return await self._session.call(Call(name, values, dict), timeout)

    def infer_each(
        self, name: str, requests: Iterable[Values], *, timeout: Seconds = None
    ) -> AsyncGenerator[dict[str, Array] | HfxError, None]:
        """`infer` for each of many requests, as `each` does it."""
        return self.each(lambda values: self.infer(name, values, timeout=timeout), requests)

    @overload
    async def classify(
        self, name: str, texts: str, *, top_k: Count = None, timeout: Seconds = None
    ) -> Classification: ...
    @overload
    async def classify(
        self, name: str, texts: Many, *, top_k: Count = None, timeout: Seconds = None
    ) -> list[Classification]: ...
    async def classify(self, name: str, texts: Texts, *, top_k: Count = None, timeout: Seconds = None) -> Any:
        """The best `top_k` labels of each text (the model's own number without it)."""
        return await self._call(calls.classify(name, top_k), texts, timeout)

    @overload
    async def label_tokens(self, name: str, texts: str, *, timeout: Seconds = None) -> Entities: ...
    @overload
    async def label_tokens(self, name: str, texts: Many, *, timeout: Seconds = None) -> list[Entities]: ...
    async def label_tokens(self, name: str, texts: Texts, *, timeout: Seconds = None) -> Any:
        """The entities of each text."""
        return await self._call(calls.label_tokens(name), texts, timeout)

    @overload
    async def answer(self, name: str, question: str, context: str, *, timeout: Seconds = None) -> Answer: ...
    @overload
    async def answer(self, name: str, question: Many, context: Texts, *, timeout: Seconds = None) -> list[Answer]: ...
    async def answer(self, name: str, question: Texts, context: Texts, *, timeout: Seconds = None) -> Any:
        """The answer that `context` gives to `question`; of lists, pair by pair (one context serves all questions)."""
        pairs = calls.pairs(question, context)
        if isinstance(pairs, tuple):
            return await self._session.call(calls.answer(name)(pairs), timeout)
        return await self._call_all(calls.answer(name), pairs, timeout)

    async def embed(self, name: str, texts: Texts, *, timeout: Seconds = None) -> Vectors:
        """The vectors of the texts: float32 of shape [d] for a text, [number of texts, d] for many."""
        embeddings = await self._call(calls.embed(name), texts, timeout)
        return embeddings.vector if isinstance(texts, str) else calls.matrix(embeddings, await self.metadata(name))

    @overload
    async def zero_shot(
        self,
        name: str,
        texts: str,
        labels: Many,
        *,
        multi_label: Flag = None,
        top_k: Count = None,
        timeout: Seconds = None,
    ) -> Classification: ...
    @overload
    async def zero_shot(
        self,
        name: str,
        texts: Many,
        labels: Many,
        *,
        multi_label: Flag = None,
        top_k: Count = None,
        timeout: Seconds = None,
    ) -> list[Classification]: ...
    async def zero_shot(
        self,
        name: str,
        texts: Texts,
        labels: Many,
        *,
        multi_label: Flag = None,
        top_k: Count = None,
        timeout: Seconds = None,
    ) -> Any:
        """The scores of the candidate `labels` for each text; with `multi_label` each label is judged by itself."""
        return await self._call(calls.zero_shot(name, labels, multi_label, top_k), texts, timeout)

    async def rank(
        self, name: str, query: str, texts: Many, *, raw_scores: Flag = None, timeout: Seconds = None
    ) -> list[Rank]:
        """The scores of the texts for `query`, best first; with `raw_scores` the logits, without an activation."""
        calls.check_several(texts)
        return best_first(await self._call_all(calls.rank(name, query, raw_scores), enumerate(texts), timeout))

    @overload
    async def generate(
        self, name: str, texts: str, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> Generation: ...
    @overload
    async def generate(
        self, name: str, texts: Many, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> list[Generation]: ...
    async def generate(
        self, name: str, texts: Texts, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> Any:
        """The model's continuation of each text, or answer to it. Keywords win over the settings of `settings`."""
        return await self._call(calls.generate(name, merged(settings, keywords)), texts, timeout)

    @overload
    async def summarize(
        self, name: str, texts: str, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> Generation: ...
    @overload
    async def summarize(
        self, name: str, texts: Many, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> list[Generation]: ...
    async def summarize(
        self, name: str, texts: Texts, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> Any:
        """As `generate`, of a summarization model only; `long="chunk"` summarizes texts of any length."""
        make = calls.generate(name, merged(settings, keywords))
        check_summarizer(await self._session.metadata(name, timeout))
        return await self._call(make, texts, timeout)

    def stream(
        self, name: str, text: str, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> AsyncTextStream:
        """As `generate`, but the pieces of the text as they come: `with client.stream(…) as pieces: …`."""
        call = calls.stream(name, text, merged(settings, keywords))
        return AsyncTextStream(self._session, name, call, timeout)

    async def close(self) -> None:
        """Close the connection; calls that are under way in other threads end with RequestCancelled."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _call(self, make: Callable[[str], Call[Any]], texts: Texts, timeout: Seconds) -> Any:
        if isinstance(texts, str):
            return await self._session.call(make(texts), timeout)
        calls.check_iterable(texts)
        return await self._call_all(make, texts, timeout)

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


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)
