"""The blocking client: one method a task, typed results, typed errors.

A signature for each way of asking, and nothing else: what is asked is in asking.py, how it is sent in session.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from hfx.client import asking
from hfx.client.address import Tls, access_of, parse_address
from hfx.client.asking import Asker
from hfx.client.connecting import connect
from hfx.client.generations import Generation
from hfx.client.inputs import Values
from hfx.client.metadata import ModelMetadata
from hfx.client.results import Answer, Classification, Entities
from hfx.client.retries import RetryPolicy, policy_of
from hfx.client.session import Limits, Session
from hfx.client.settings import GenerationSettings, Settings, merged
from hfx.client.streams import Reading, TextStream
from hfx.client.transport import Transport
from hfx.client.waiting import Blocking, run
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


class Client:
    """A connection to a Triton server; a context manager, safe to share between threads.

    `url` is HOST:PORT of the gRPC port (or grpc://, and grpcs:// with TLS), or http:// or https://HOST:PORT of the HTTP
    port. Each request must be done within `timeout` seconds (those that a call names, or else the client's), retries
    and all; a generator is told, and stops then. Of many texts, up to `max_in_flight` are asked at a time. A stream
    ends with an error when no piece comes for `idle_timeout` seconds. `retries` is a RetryPolicy, or how many there
    may be (0: none). `token` is sent as `Authorization: Bearer`, but in plain text to this machine only. `transport`
    replaces the connection (then `url` and what belongs to it are not used).

    A text gives one result, an iterable of texts a list in the same order. If one of many fails, the others are
    cancelled and its error is raised, with its index; with `return_errors=True` errors take the places of results.
    The errors are those that `help(hfx.client)` shows.
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
            transport = connect(address, access_of(address, headers, token, tls))
        self.url = transport.url
        self._session = Session(transport, Blocking(), limits, policy)

    def is_ready(self) -> bool:
        """Whether the server answers and all of its models are ready."""
        return run(self._session.is_ready())

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Return when all models are ready; raises ServerUnreachable or RequestTimeout after `timeout` seconds."""
        run(self._session.wait_ready(timeout))

    def models(self) -> list[str]:
        """The names to ask for, sorted: the ready models without their members."""
        return run(asking.models(self._asker(None)))

    def metadata(self, name: str) -> ModelMetadata:
        """The input and output tensors of a model, asked once."""
        return run(asking.metadata(self._asker(None), name))

    def infer(self, name: str, values: Values, *, timeout: Seconds = None) -> dict[str, Array]:
        """Any model by its tensors: plain values in (a batch dimension is added), output tensors [1, …] out."""
        return run(asking.infer(self._asker(timeout), name, values))

    def infer_each(
        self, name: str, requests: Iterable[Values], *, timeout: Seconds = None
    ) -> Iterator[dict[str, Array] | HfxError]:
        """As `infer`, for many: yields tensors or an error for each, in order, and reads no more than it must."""
        coming = asking.infer_each(self._asker(timeout), name, requests)
        try:
            while True:
                try:
                    yield run(coming.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            run(coming.aclose())

    @overload
    def classify(
        self, name: str, texts: str, *, top_k: int | None = None, timeout: Seconds = None
    ) -> Classification: ...
    @overload
    def classify(
        self, name: str, texts: Iterable[str], *, top_k: int | None = None, timeout: Seconds = None
    ) -> list[Classification]: ...
    @overload
    def classify(
        self, name: str, texts: Texts, *, top_k: int | None = None, timeout: Seconds = None, return_errors: Yes
    ) -> list[Classification | HfxError]: ...
    def classify(
        self,
        name: str,
        texts: Texts,
        *,
        top_k: int | None = None,
        timeout: Seconds = None,
        return_errors: bool = False,
    ) -> Any:
        """The best `top_k` labels of each text (the model's own number without it)."""
        return run(asking.classify(self._asker(timeout, return_errors), name, texts, top_k))

    @overload
    def label_tokens(self, name: str, texts: str, *, timeout: Seconds = None) -> Entities: ...
    @overload
    def label_tokens(self, name: str, texts: Iterable[str], *, timeout: Seconds = None) -> list[Entities]: ...
    @overload
    def label_tokens(
        self, name: str, texts: Texts, *, timeout: Seconds = None, return_errors: Yes
    ) -> list[Entities | HfxError]: ...
    def label_tokens(self, name: str, texts: Texts, *, timeout: Seconds = None, return_errors: bool = False) -> Any:
        """The entities of each text."""
        return run(asking.label_tokens(self._asker(timeout, return_errors), name, texts))

    @overload
    def answer(self, name: str, question: str, context: str, *, timeout: Seconds = None) -> Answer: ...
    @overload
    def answer(
        self, name: str, question: Iterable[str], context: Texts, *, timeout: Seconds = None
    ) -> list[Answer]: ...
    @overload
    def answer(
        self, name: str, question: Texts, context: Texts, *, timeout: Seconds = None, return_errors: Yes
    ) -> list[Answer | HfxError]: ...
    def answer(
        self, name: str, question: Texts, context: Texts, *, timeout: Seconds = None, return_errors: bool = False
    ) -> Any:
        """The answer that `context` gives to `question`; of lists, pair by pair (one context serves all questions)."""
        return run(asking.answer(self._asker(timeout, return_errors), name, question, context))

    @overload
    def embed(self, name: str, texts: Texts, *, timeout: Seconds = None) -> Vectors: ...
    @overload
    def embed(
        self, name: str, texts: Texts, *, timeout: Seconds = None, return_errors: Yes
    ) -> list[Vectors | HfxError]: ...
    def embed(self, name: str, texts: Texts, *, timeout: Seconds = None, return_errors: bool = False) -> Any:
        """The vectors of the texts: float32 of shape [d] for a text, [number of texts, d] for many."""
        return run(asking.embed(self._asker(timeout, return_errors), name, texts))

    @overload
    def zero_shot(
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
    def zero_shot(
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
    def zero_shot(
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
    def zero_shot(
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
        return run(asking.zero_shot(self._asker(timeout, return_errors), name, texts, labels, multi_label, top_k))

    @overload
    def generate(
        self,
        name: str,
        texts: str,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> Generation: ...
    @overload
    def generate(
        self,
        name: str,
        texts: Iterable[str],
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> list[Generation]: ...
    @overload
    def generate(
        self,
        name: str,
        texts: Texts,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        return_errors: Yes,
        **keywords: Unpack[Settings],
    ) -> list[Generation | HfxError]: ...
    def generate(
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
        return run(asking.generate(self._asker(timeout, return_errors), name, texts, merged(settings, keywords)))

    @overload
    def summarize(
        self,
        name: str,
        texts: str,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> Generation: ...
    @overload
    def summarize(
        self,
        name: str,
        texts: Iterable[str],
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> list[Generation]: ...
    @overload
    def summarize(
        self,
        name: str,
        texts: Texts,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        return_errors: Yes,
        **keywords: Unpack[Settings],
    ) -> list[Generation | HfxError]: ...
    def summarize(
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
        return run(asking.summarize(self._asker(timeout, return_errors), name, texts, merged(settings, keywords)))

    def stream(
        self,
        name: str,
        text: str,
        settings: GenerationSettings | None = None,
        *,
        timeout: Seconds = None,
        **keywords: Unpack[Settings],
    ) -> TextStream:
        """As `generate`, but the pieces of the text as they come: `with client.stream(…) as pieces: …`."""
        call = asking.streamed(name, text, merged(settings, keywords))
        return TextStream(Reading(self._session, name, call, timeout))

    def close(self) -> None:
        """Close the connection; calls that are under way in other threads end with RequestCancelled."""
        run(self._session.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _asker(self, timeout: Seconds, return_errors: bool = False) -> Asker:
        return Asker(self._session, timeout, return_errors)
