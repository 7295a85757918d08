"""The asynchronous client: one method for each task, with typed results and typed errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from hfx.client import calls
from hfx.client.base import AsyncBase
from hfx.client.calls import AnswerSettings, Call, Count, Flag, LongTexts, Many, Preset, Search, Seconds, Texts, Word
from hfx.client.results import Answer, Classification, Entities, Fills, Generation, Rank, best_first
from hfx.client.settings import Settings, merged
from hfx.client.streams import AsyncTextStream
from hfx.errors import HfxError
from hfx.metadata import ModelMetadata, Values
from hfx.tasks import check_summarizer, is_late

if TYPE_CHECKING:
    from hfx.client.calls import Vectors
    from hfx.client.tensors import Array

# A str is also an iterable of strings, so mypy reports that the overloads overlap unsafely. For a str, the first
# overload is chosen, as intended.
# mypy: disable-error-code="overload-overlap"


class AsyncClient(AsyncBase):
    """A client for asyncio, whose methods are awaited and whose streams are read with `async for`.

    A client belongs to one event loop, whose tasks may share it. Over gRPC, cancelling a task cancels its request on
    the server; over HTTP, the timeout ends the request.
    """

    async def is_ready(self) -> bool:
        """Return whether the server answers and all models are ready; raises ServerError if it refuses the token."""
        return await self._session.is_ready()

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """Return when all models are ready; raises ServerUnreachable or RequestTimeout after `timeout` seconds."""
        await self._session.wait_ready(timeout)

    async def models(self) -> list[str]:
        """Return the sorted names of the ready models that can be requested, without the members of these models."""
        return await self._session.models()

    async def metadata(self, name: str) -> ModelMetadata:
        """Return the input and output tensors of a model, which are cached after the first request."""
        return await self._session.metadata(name)

    async def model_sha256(self, name: str) -> str:
        """Return the SHA-256 of the served model's files; empty if the server does not report it."""
        return await self._session.model_sha256(name)

    async def infer(self, name: str, values: Values, *, timeout: Seconds = None) -> dict[str, Array]:
        """Return any model's output tensors [1, …] for `values`: a value or a list of values for each input."""
        return await self._session.call(calls.infer(name, values), timeout)

    def infer_each(
        self, name: str, requests: Iterable[Values], *, timeout: Seconds = None
    ) -> AsyncGenerator[dict[str, Array] | HfxError, None]:
        """Call `infer` for each of many requests, and yield the results as `each` does."""
        return self.each(lambda values: self.infer(name, values, timeout=timeout), requests)

    @overload
    async def classify(
        self, name: str, texts: str, *, top_k: Count = None, timeout: Seconds = None, **reading: Unpack[LongTexts]
    ) -> Classification: ...
    @overload
    async def classify(
        self, name: str, texts: Many, *, top_k: Count = None, timeout: Seconds = None, **reading: Unpack[LongTexts]
    ) -> list[Classification]: ...
    async def classify(
        self, name: str, texts: Texts, *, top_k: Count = None, timeout: Seconds = None, **reading: Unpack[LongTexts]
    ) -> Any:
        """Return the best `top_k` labels of each text (default: the model's own number).

        A text that is longer than the model is cut; if `long` is error, it is refused. If `long` is mean or max, it is
        read in windows that share `stride` tokens, and a label has the mean or the largest of its scores.
        """
        return await self._call(calls.classify(name, top_k, **reading), texts, timeout)

    @overload
    async def label_tokens(
        self, name: str, texts: str, labels: Many | None = None, *, timeout: Seconds = None, **reading: Unpack[Search]
    ) -> Entities: ...
    @overload
    async def label_tokens(
        self, name: str, texts: Many, labels: Many | None = None, *, timeout: Seconds = None, **reading: Unpack[Search]
    ) -> list[Entities]: ...
    async def label_tokens(
        self, name: str, texts: Texts, labels: Many | None = None, *, timeout: Seconds = None, **reading: Unpack[Search]
    ) -> Any:
        """Return the entities of each text. A text that is longer than the model is read in windows.

        Two windows share `stride` tokens. If `long` is truncate, such a text is cut; if it is error, it is refused.

        Models that find entities of any labels (GLiNER) need the `labels` to find. Their entities have scores above
        `threshold` (0.5 by default). With `nested`, an entity may be inside another; with `multi_label`, it may have
        several labels.
        """
        return await self._call(calls.label_tokens(name, labels, **reading), texts, timeout)

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
        """Return the best `top_k` tokens (default: 5) for each mask of each text, from `targets` or from all tokens."""
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
        """Return the answer to `question` in `context`. Lists are paired up; a single context serves all questions.

        `top_k` is the number of answers, `max_answer_len` the maximum number of tokens in an answer, and `doc_stride`
        the number of tokens that two neighbouring windows over the context share. With `handle_impossible_answer`,
        the answer may be empty.
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
        """Return the vectors of the texts: float32 of shape [d] for a text, [number of texts, d] for many.

        A prompt is put before each text: `prompt_name` names one of the model's prompts, `prompt` is any text.
        `dimensions` shortens the vectors of models that were trained for it: each vector is cut to its first numbers
        and scaled to length 1.
        """
        embeddings = await self._call(calls.embed(name, prompt_name, prompt, dimensions), texts, timeout)
        return embeddings.vector if isinstance(texts, str) else calls.matrix(embeddings, await self.metadata(name))

    async def embed_tokens(
        self, name: str, texts: Many, *, prompt_name: Word = None, prompt: Word = None, timeout: Seconds = None
    ) -> list[Vectors]:
        """Return the vectors of each text's tokens, special tokens included, as float32 of shape [tokens, d].

        The model must have been exported with vectors of tokens (ColBERT, or `--token-vectors`). For `prompt_name` and
        `prompt` see `embed`.
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
        """Return the scores of the candidate `labels` for each text; `multi_label` scores each label independently."""
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
        """Return the scores of the texts for `query`, best first; with `raw_scores` the logits, without an activation.

        `prompt_name` names one of the model's prompts, `prompt` is any text. The prompt is put before the query, or is
        the instruction in a template. The scores of a ColBERT are MaxSim, and it takes no `prompt_name`.
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
        """Return the scores of (query, text) pairs, as CrossEncoder.predict does: float32 of shape [pairs, labels].

        For a model with one label the shape is [pairs], and `apply_softmax` is not available. With `raw_scores`, the
        scores are the logits. For `prompt_name` and `prompt` see `rank`.
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
        """Return the model's continuation of each text, or its answer to the text. Keywords override `settings`."""
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
        """Summarize texts with the parameters of `generate`; `long="chunk"` summarizes texts of any length."""
        make = calls.generate(name, merged(settings, keywords))
        check_summarizer(await self._session.metadata(name, timeout))
        return await self._call(make, texts, timeout)

    def stream(
        self, name: str, text: str, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> AsyncTextStream:
        """Return a context manager that yields the text of `generate` in pieces as they are generated."""
        call = calls.stream(name, text, merged(settings, keywords))
        return AsyncTextStream(self._session, name, call, timeout)

    async def close(self) -> None:
        """Close the connection; calls in progress in other threads or tasks end with RequestCancelled."""
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
