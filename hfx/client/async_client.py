"""The asynchronous client: one method a task, typed results, typed errors.

A signature for each way of asking, and nothing else: what is asked is in asking.py, how it is sent in session.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from hfx.client import asking
from hfx.client.address import Tls, access_of, parse_address
from hfx.client.asking import Asker
from hfx.client.connecting import connect_async
from hfx.client.generations import Generation
from hfx.client.inputs import Values
from hfx.client.metadata import ModelMetadata
from hfx.client.results import Answer, Classification, Entities
from hfx.client.retries import RetryPolicy, policy_of
from hfx.client.session import Limits, Session
from hfx.client.settings import GenerationSettings, Settings, merged
from hfx.client.streams import AsyncTextStream, Reading
from hfx.client.transport import Transport
from hfx.client.waiting import Asynchronous
from hfx.errors import HfxError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hfx.client.tensors import Array

    Vectors = npt.NDArray[np.float32]

# A str is an iterable of strings too, which mypy calls an unsafe overlap: the first overload wins, as meant.
# mypy: disable-error-code="overload-overlap"

Seconds = float | None
Texts = str | Iterable[str]
Yes = Literal[True]


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
        if transport is None:
            address = parse_address(url)
            transport = connect_async(address, access_of(address, headers, token, tls))
        self.url = transport.url
        self._session = Session(transport, Asynchronous(), limits, policy)

    async def is_ready(self) -> bool:
        """Whether the server answers and all of its models are ready."""
        return await self._session.is_ready()

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """Return when all models are ready; raises ServerUnreachable or RequestTimeout after `timeout` seconds."""
        await self._session.wait_ready(timeout)

    async def models(self) -> list[str]:
        """The names to ask for, sorted: the ready models without their members."""
        return await asking.models(self._asker(None))

    async def metadata(self, name: str) -> ModelMetadata:
        """The input and output tensors of a model, asked once."""
        return await asking.metadata(self._asker(None), name)

    async def infer(self, name: str, values: Values, *, timeout: Seconds = None) -> dict[str, Array]:
        """Any model by its tensors: plain values in (a batch dimension is added), output tensors [1, …] out."""
        return await asking.infer(self._asker(timeout), name, values)

    def infer_each(
        self, name: str, requests: Iterable[Values], *, timeout: Seconds = None
    ) -> AsyncIterator[dict[str, Array] | HfxError]:
        """As `infer`, for many: yields tensors or an error for each, in order, and reads no more than it must."""
        return asking.infer_each(self._asker(timeout), name, requests)

    @overload
    async def classify(
        self, name: str, texts: str, *, top_k: int | None = None, timeout: Seconds = None
    ) -> Classification: ...
    @overload
    async def classify(
        self, name: str, texts: Iterable[str], *, top_k: int | None = None, timeout: Seconds = None
    ) -> list[Classification]: ...
    @overload
    async def classify(
        self, name: str, texts: Texts, *, top_k: int | None = None, timeout: Seconds = None, return_errors: Yes
    ) -> list[Classification | HfxError]: ...
    async def classify(
        self,
        name: str,
        texts: Texts,
        *,
        top_k: int | None = None,
        timeout: Seconds = None,
        return_errors: bool = False,
    ) -> Any:
        """The best `top_k` labels of each text (the model's own number without it)."""
        return await asking.classify(self._asker(timeout, return_errors), name, texts, top_k)

    @overload
    async def label_tokens(self, name: str, texts: str, *, timeout: Seconds = None) -> Entities: ...
    @overload
    async def label_tokens(self, name: str, texts: Iterable[str], *, timeout: Seconds = None) -> list[Entities]: ...
    @overload
    async def label_tokens(
        self, name: str, texts: Texts, *, timeout: Seconds = None, return_errors: Yes
    ) -> list[Entities | HfxError]: ...
    async def label_tokens(
        self, name: str, texts: Texts, *, timeout: Seconds = None, return_errors: bool = False
    ) -> Any:
        """The entities of each text."""
        return await asking.label_tokens(self._asker(timeout, return_errors), name, texts)

    @overload
    async def answer(self, name: str, question: str, context: str, *, timeout: Seconds = None) -> Answer: ...
    @overload
    async def answer(
        self, name: str, question: Iterable[str], context: Texts, *, timeout: Seconds = None
    ) -> list[Answer]: ...
    @overload
    async def answer(
        self, name: str, question: Texts, context: Texts, *, timeout: Seconds = None, return_errors: Yes
    ) -> list[Answer | HfxError]: ...
    async def answer(
        self, name: str, question: Texts, context: Texts, *, timeout: Seconds = None, return_errors: bool = False
    ) -> Any:
        """The answer that `context` gives to `question`; of lists, pair by pair (one context serves all questions)."""
        return await asking.answer(self._asker(timeout, return_errors), name, question, context)

    @overload
    async def embed(self, name: str, texts: Texts, *, timeout: Seconds = None) -> Vectors: ...
    @overload
    async def embed(
        self, name: str, texts: Texts, *, timeout: Seconds = None, return_errors: Yes
    ) -> list[Vectors | HfxError]: ...
    async def embed(self, name: str, texts: Texts, *, timeout: Seconds = None, return_errors: bool = False) -> Any:
        """The vectors of the texts: float32 of shape [d] for a text, [number of texts, d] for many."""
        return await asking.embed(self._asker(timeout, return_errors), name, texts)

    @overload
    async def zero_shot(
        self,
        name: str,
        texts: str,
        labels: Iterable[str],
        *,
        multi_label: bool | None = None,
        top_k: int | None = None,
        timeout: Seconds = None,
    ) -> Classification: ...
    @overload
    async def zero_shot(
        self,
        name: str,
        texts: Iterable[str],
        labels: Iterable[str],
        *,
        multi_label: bool | None = None,
        top_k: int | None = None,
        timeout: Seconds = None,
    ) -> list[Classification]: ...
    @overload
    async def zero_shot(
        self,
        name: str,
        texts: Texts,
        labels: Iterable[str],
        *,
        multi_label: bool | None = None,
        top_k: int | None = None,
        timeout: Seconds = None,
        return_errors: Yes,
    ) -> list[Classification | HfxError]: ...
    async def zero_shot(
        self,
        name: str,
        texts: Texts,
        labels: Iterable[str],
        *,
        multi_label: bool | None = None,
        top_k: int | None = None,
        timeout: Seconds = None,
        return_errors: bool = False,
    ) -> Any:
        """The scores of the candidate `labels` for each text; with `multi_label` each label is judged by itself."""
        return await asking.zero_shot(self._asker(timeout, return_errors), name, texts, labels, multi_label, top_k)

    @overload
    async def generate(
        self,
        name: str,
        texts: str,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> Generation: ...
    @overload
    async def generate(
        self,
        name: str,
        texts: Iterable[str],
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> list[Generation]: ...
    @overload
    async def generate(
        self,
        name: str,
        texts: Texts,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        return_errors: Yes,
        **keywords: Unpack[Settings],
    ) -> list[Generation | HfxError]: ...
    async def generate(
        self,
        name: str,
        texts: Texts,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        return_errors: bool = False,
        **keywords: Unpack[Settings],
    ) -> Any:
        """How the model goes on with each text, or answers it. Settings are an object's, and keywords, which win."""
        return await asking.generate(self._asker(timeout, return_errors), name, texts, merged(settings, keywords))

    @overload
    async def summarize(
        self,
        name: str,
        texts: str,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> Generation: ...
    @overload
    async def summarize(
        self,
        name: str,
        texts: Iterable[str],
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> list[Generation]: ...
    @overload
    async def summarize(
        self,
        name: str,
        texts: Texts,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        return_errors: Yes,
        **keywords: Unpack[Settings],
    ) -> list[Generation | HfxError]: ...
    async def summarize(
        self,
        name: str,
        texts: Texts,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        return_errors: bool = False,
        **keywords: Unpack[Settings],
    ) -> Any:
        """As `generate`, of a summarization model only; `long="chunk"` summarizes texts of any length."""
        return await asking.summarize(self._asker(timeout, return_errors), name, texts, merged(settings, keywords))

    def stream(
        self,
        name: str,
        text: str,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> AsyncTextStream:
        """As `generate`, but the pieces of the text as they come: `async with client.stream(…) as pieces: …`."""
        call = asking.streamed(name, text, merged(settings, keywords))
        return AsyncTextStream(Reading(self._session, name, call, timeout))

    async def close(self) -> None:
        """Close the connection; calls that are under way in other tasks end with RequestCancelled."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _asker(self, timeout: Seconds, return_errors: bool = False) -> Asker:
        return Asker(self._session, timeout, return_errors)
