"""The asynchronous client: one method a task, typed results, typed errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from hfx.client import calls
from hfx.client.base import AsyncBase
from hfx.client.calls import AnswerSettings, Call, Count, Flag, Many, Preset, Seconds, Texts, Word
from hfx.client.results import Answer, Classification, Entities, Fills, Generation, Rank, best_first
from hfx.client.settings import Settings, merged
from hfx.client.streams import AsyncTextStream
from hfx.errors import HfxError
from hfx.metadata import ModelMetadata, Values
from hfx.tasks import check_summarizer, is_late

if TYPE_CHECKING:
    from hfx.client.calls import Vectors
    from hfx.client.tensors import Array

# A str is an iterable of strings too, which mypy calls an unsafe overlap: the first overload wins, as meant.
# mypy: disable-error-code="overload-overlap"


class AsyncClient(AsyncBase):
    """Client for asyncio: await its methods, and read streams by `async for`. It belongs to one event loop.

    Tasks share it. A cancelled task cancels its request on the server (over gRPC; over HTTP the timeout ends it).
    """

    async def is_ready(self) -> bool:
        """Whether the server answers and all of its models are ready; raises ServerError if it refuses the token."""
        return await self._session.is_ready()

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """Return when all models are ready; raises ServerUnreachable or RequestTimeout after `timeout` seconds."""
        await self._session.wait_ready(timeout)

    async def models(self) -> list[str]:
        """The names that can be requested, sorted: the ready models without their members."""
        return await self._session.models()

    async def metadata(self, name: str) -> ModelMetadata:
        """The input and output tensors of a model; kept after the first request."""
        return await self._session.metadata(name)

    async def model_sha256(self, name: str) -> str:
        """The SHA-256 of the served model's files; empty if the server does not report it."""
        return await self._session.model_sha256(name)

    async def infer(self, name: str, values: Values, *, timeout: Seconds = None) -> dict[str, Array]:
        """Query any model by tensors: a value or a list of values for each input, output tensors [1, …] out."""
        return await self._session.call(calls.infer(name, values), timeout)

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
        """The best `top_k` labels of each text (default: the model's own number)."""
        return await self._call(calls.classify(name, top_k), texts, timeout)

    @overload
    async def label_tokens(self, name: str, texts: str, *, timeout: Seconds = None) -> Entities: ...
    @overload
    async def label_tokens(self, name: str, texts: Many, *, timeout: Seconds = None) -> list[Entities]: ...
    async def label_tokens(self, name: str, texts: Texts, *, timeout: Seconds = None) -> Any:
        """The entities of each text."""
        return await self._call(calls.label_tokens(name), texts, timeout)

    @overload
    async def fill_mask(
        self, name: str, texts: str, *, top_k: Count = None, targets: Texts | None = None, timeout: Seconds = None
    ) -> Fills: ...
    @overload
    async def fill_mask(
        self, name: str, texts: Many, *, top_k: Count = None, targets: Texts | None = None, timeout: Seconds = None
    ) -> list[Fills]: ...
    async def fill_mask(
        self, name: str, texts: Texts, *, top_k: Count = None, targets: Texts | None = None, timeout: Seconds = None
    ) -> Any:
        """The best `top_k` tokens (default: 5), of `targets` or of all, for each mask token of each text."""
        return await self._call(calls.fill_mask(name, top_k, targets), texts, timeout)

    @overload
    async def answer(
        self, name: str, question: str, context: str, *, timeout: Seconds = None, **settings: Unpack[AnswerSettings]
    ) -> Answer: ...
    @overload
    async def answer(
        self, name: str, question: Many, context: Texts, *, timeout: Seconds = None, **settings: Unpack[AnswerSettings]
    ) -> list[Answer]: ...
    async def answer(
        self, name: str, question: Texts, context: Texts, *, timeout: Seconds = None, **settings: Unpack[AnswerSettings]
    ) -> Any:
        """The answer to `question` in `context`. Lists are paired up; a single context is for all questions.

        Of the settings, `top_k` is the number of answers, `max_answer_len` that of an answer's tokens at most,
        `doc_stride` that of the tokens that two windows over the context share. With `handle_impossible_answer`, the
        answer may be empty.
        """
        call, pairs = calls.answer(name, **settings), calls.pairs(question, context)
        if isinstance(pairs, tuple):
            return await self._session.call(call(pairs), timeout)
        return await self._call_all(call, pairs, timeout)

    async def embed(
        self,
        name: str,
        texts: Texts,
        *,
        prompt_name: Word = None,
        prompt: Word = None,
        dimensions: Count = None,
        timeout: Seconds = None,
    ) -> Vectors:
        """The vectors of the texts: float32 of shape [d] for a text, [number of texts, d] for many.

        A prompt is put before each text: `prompt_name` is one of the model's prompts, `prompt` any text. `dimensions`,
        of models trained for it, shortens the vectors: their first numbers, scaled to length 1.
        """
        embeddings = await self._call(calls.embed(name, prompt_name, prompt, dimensions), texts, timeout)
        return embeddings.vector if isinstance(texts, str) else calls.matrix(embeddings, await self.metadata(name))

    async def embed_tokens(
        self, name: str, texts: Many, *, prompt_name: Word = None, prompt: Word = None, timeout: Seconds = None
    ) -> list[Vectors]:
        """The vectors of each text's tokens, special ones among them, float32 of shape [tokens, d].

        Of models that were exported so (ColBERT, `--token-vectors`); for `prompt_name` and `prompt` see `embed`.
        """
        calls.check_several(texts)
        embeddings = await self._call_all(calls.embed_tokens(name, prompt_name, prompt), texts, timeout)
        return [embedding.vector for embedding in embeddings]

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
        """The scores of the candidate `labels` for each text; with `multi_label` each label is scored independently."""
        return await self._call(calls.zero_shot(name, labels, multi_label, top_k), texts, timeout)

    async def rank(
        self,
        name: str,
        query: str,
        texts: Many,
        *,
        raw_scores: Flag = None,
        prompt_name: Word = None,
        prompt: Word = None,
        timeout: Seconds = None,
    ) -> list[Rank]:
        """The scores of the texts for `query`, best first; with `raw_scores` the logits, without an activation.

        `prompt_name` names one of the model's prompts, `prompt` is any: what is put before the query, or the
        instruction of a template. Scores of a ColBERT are MaxSim; it takes no `prompt_name`.
        """
        calls.check_several(texts)
        make = calls.rank(name, query, raw_scores, prompt_name, prompt)
        if is_late(await self._session.metadata(name, timeout)):
            found = await self._session.call(calls.query_tokens(name, prompt_name, prompt)(query), timeout)
            make = calls.rank_by_tokens(name, found.vector)
        return best_first(await self._call_all(make, enumerate(texts), timeout))

    async def predict(
        self,
        name: str,
        pairs: Iterable[tuple[str, str]],
        *,
        raw_scores: Flag = None,
        apply_softmax: Flag = None,
        prompt_name: Word = None,
        prompt: Word = None,
        timeout: Seconds = None,
    ) -> Vectors:
        """The scores of (query, text) pairs, as CrossEncoder.predict returns them: float32 of shape [pairs, labels].

        A model of one label has the shape [pairs], and no `apply_softmax`. `raw_scores` are the logits; for
        `prompt_name` and `prompt` see `rank`.
        """
        rows = await self._call_all(calls.predict(name, raw_scores, apply_softmax, prompt_name, prompt), pairs, timeout)
        return calls.scores(rows, await self.metadata(name))

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
        """The model's continuation of each text, or answer to it. Keywords override `settings`."""
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
        """Like `generate`, for summarization models only; `long="chunk"` summarizes texts of any length."""
        make = calls.generate(name, merged(settings, keywords))
        check_summarizer(await self._session.metadata(name, timeout))
        return await self._call(make, texts, timeout)

    def stream(
        self, name: str, text: str, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> AsyncTextStream:
        """Like `generate`, but yields the text in pieces as generated: `with client.stream(…) as pieces: …`."""
        call = calls.stream(name, text, merged(settings, keywords))
        return AsyncTextStream(self._session, name, call, timeout)

    async def close(self) -> None:
        """Close the connection; calls in progress in other threads end with RequestCancelled."""
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
