"""The blocking client: one method a task, typed results, typed errors.

Made by `make docs` from async_client.py: change that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from hfx.client import calls
from hfx.client.base import BlockingBase
from hfx.client.calls import AnswerSettings, Call, Count, Flag, LongTexts, Many, Preset, Search, Seconds, Texts, Word
from hfx.client.results import Answer, Classification, Entities, Fills, Generation, Rank, best_first
from hfx.client.settings import Settings, merged
from hfx.client.streams import TextStream
from hfx.client.transport import run
from hfx.errors import HfxError
from hfx.metadata import ModelMetadata, Values
from hfx.tasks import check_summarizer, is_late

if TYPE_CHECKING:
    from hfx.client.calls import Vectors
    from hfx.client.tensors import Array

# A str is also an iterable of strings, so mypy reports that the overloads overlap unsafely. For a str, the first
# overload is chosen, as intended.
# mypy: disable-error-code="overload-overlap"


class Client(BlockingBase):
    """A connection to a Triton server: a context manager, which threads may share.

    `url` is HOST:PORT of the gRPC port (also grpc://, or grpcs:// with TLS), or http(s)://HOST:PORT of the HTTP port. A
    request has `timeout` seconds, retries included, unless a call sets its own; generators get the timeout too and stop
    in time. Of many texts, up to `max_in_flight` are sent at a time. A stream fails if no piece arrives for
    `idle_timeout` seconds. `retries` is a RetryPolicy or a number (0: none). `token` is sent as a bearer token; without
    encryption, only to this machine. `transport` replaces the connection, and `url` is then unused.

    One text gives one result, an iterable of texts a list in the same order. If one of many fails, the others are
    cancelled and its error is raised, with its index; `each` yields errors in place of results.
    The errors are those that `help(hfx.client)` shows.
    """

    def is_ready(self) -> bool:
        """Return whether the server answers and all models are ready; raises ServerError if it refuses the token."""
        return run(self._session.is_ready())

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Return when all models are ready; raises ServerUnreachable or RequestTimeout after `timeout` seconds."""
        run(self._session.wait_ready(timeout))

    def models(self) -> list[str]:
        """Return the sorted names of the ready models that can be requested, without the members of these models."""
        return run(self._session.models())

    def metadata(self, name: str) -> ModelMetadata:
        """Return the input and output tensors of a model, which are cached after the first request."""
        return run(self._session.metadata(name))

    def model_sha256(self, name: str) -> str:
        """Return the SHA-256 of the served model's files; empty if the server does not report it."""
        return run(self._session.model_sha256(name))

    def infer(self, name: str, values: Values, *, timeout: Seconds = None) -> dict[str, Array]:
        """Return any model's output tensors [1, …] for `values`: a value or a list of values for each input."""
        return run(self._session.call(calls.infer(name, values), timeout))

    def infer_each(
        self, name: str, requests: Iterable[Values], *, timeout: Seconds = None
    ) -> Iterator[dict[str, Array] | HfxError]:
        """Call `infer` for each of many requests, and yield the results as `each` does."""
        return self.each(lambda values: self.infer(name, values, timeout=timeout), requests)

    @overload
    def classify(
        self, name: str, texts: str, *, top_k: Count = None, timeout: Seconds = None, **reading: Unpack[LongTexts]
    ) -> Classification: ...
    @overload
    def classify(
        self, name: str, texts: Many, *, top_k: Count = None, timeout: Seconds = None, **reading: Unpack[LongTexts]
    ) -> list[Classification]: ...
    def classify(
        self, name: str, texts: Texts, *, top_k: Count = None, timeout: Seconds = None, **reading: Unpack[LongTexts]
    ) -> Any:
        """Return the best `top_k` labels of each text (default: the model's own number).

        A text that is longer than the model is cut; if `long` is error, it is refused. If `long` is mean or max, it is
        read in windows that share `stride` tokens, and a label has the mean or the largest of its scores.
        """
        return self._call(calls.classify(name, top_k, **reading), texts, timeout)

    @overload
    def label_tokens(
        self, name: str, texts: str, labels: Many | None = None, *, timeout: Seconds = None, **reading: Unpack[Search]
    ) -> Entities: ...
    @overload
    def label_tokens(
        self, name: str, texts: Many, labels: Many | None = None, *, timeout: Seconds = None, **reading: Unpack[Search]
    ) -> list[Entities]: ...
    def label_tokens(
        self, name: str, texts: Texts, labels: Many | None = None, *, timeout: Seconds = None, **reading: Unpack[Search]
    ) -> Any:
        """Return the entities of each text. A text that is longer than the model is read in windows.

        Two windows share `stride` tokens. If `long` is truncate, such a text is cut; if it is error, it is refused.

        Models that find entities of any labels (GLiNER) need the `labels` to find. Their entities have scores above
        `threshold` (0.5 by default). With `nested`, an entity may be inside another; with `multi_label`, it may have
        several labels.
        """
        return self._call(calls.label_tokens(name, labels, **reading), texts, timeout)

    @overload
    def fill_mask(
        self, name: str, texts: str, *, top_k: Count = None, targets: Texts | None = None, timeout: Seconds = None
    ) -> Fills: ...
    @overload
    def fill_mask(
        self, name: str, texts: Many, *, top_k: Count = None, targets: Texts | None = None, timeout: Seconds = None
    ) -> list[Fills]: ...
    def fill_mask(
        self, name: str, texts: Texts, *, top_k: Count = None, targets: Texts | None = None, timeout: Seconds = None
    ) -> Any:
        """Return the best `top_k` tokens (default: 5) for each mask of each text, from `targets` or from all tokens."""
        return self._call(calls.fill_mask(name, top_k, targets), texts, timeout)

    @overload
    def answer(
        self, name: str, question: str, context: str, *, timeout: Seconds = None, **settings: Unpack[AnswerSettings]
    ) -> Answer: ...
    @overload
    def answer(
        self, name: str, question: Many, context: Texts, *, timeout: Seconds = None, **settings: Unpack[AnswerSettings]
    ) -> list[Answer]: ...
    def answer(
        self, name: str, question: Texts, context: Texts, *, timeout: Seconds = None, **settings: Unpack[AnswerSettings]
    ) -> Any:
        """Return the answer to `question` in `context`. Lists are paired up; a single context serves all questions.

        `top_k` is the number of answers, `max_answer_len` the maximum number of tokens in an answer, and `doc_stride`
        the number of tokens that two neighbouring windows over the context share. With `handle_impossible_answer`,
        the answer may be empty.
        """
        call, pairs = calls.answer(name, **settings), calls.pairs(question, context)
        if isinstance(pairs, tuple):
            return run(self._session.call(call(pairs), timeout))
        return self._call_all(call, pairs, timeout)

    def embed(
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
        embeddings = self._call(calls.embed(name, prompt_name, prompt, dimensions), texts, timeout)
        return embeddings.vector if isinstance(texts, str) else calls.matrix(embeddings, self.metadata(name))

    def embed_tokens(
        self, name: str, texts: Many, *, prompt_name: Word = None, prompt: Word = None, timeout: Seconds = None
    ) -> list[Vectors]:
        """Return the vectors of each text's tokens, special tokens included, as float32 of shape [tokens, d].

        The model must have been exported with vectors of tokens (ColBERT, or `--token-vectors`). For `prompt_name` and
        `prompt` see `embed`.
        """
        calls.check_several(texts)
        embeddings = self._call_all(calls.embed_tokens(name, prompt_name, prompt), texts, timeout)
        return [embedding.vector for embedding in embeddings]

    @overload
    def zero_shot(
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
    def zero_shot(
        self,
        name: str,
        texts: Many,
        labels: Many,
        *,
        multi_label: Flag = None,
        top_k: Count = None,
        timeout: Seconds = None,
    ) -> list[Classification]: ...
    def zero_shot(
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
        return self._call(calls.zero_shot(name, labels, multi_label, top_k), texts, timeout)

    def rank(
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
        if is_late(run(self._session.metadata(name, timeout))):
            found = run(self._session.call(calls.query_tokens(name, prompt_name, prompt)(query), timeout))
            make = calls.rank_by_tokens(name, found.vector)
        return best_first(self._call_all(make, enumerate(texts), timeout))

    def predict(
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
        rows = self._call_all(calls.predict(name, raw_scores, apply_softmax, prompt_name, prompt), pairs, timeout)
        return calls.scores(rows, self.metadata(name))

    @overload
    def generate(
        self, name: str, texts: str, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> Generation: ...
    @overload
    def generate(
        self, name: str, texts: Many, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> list[Generation]: ...
    def generate(
        self, name: str, texts: Texts, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> Any:
        """Return the model's continuation of each text, or its answer to the text. Keywords override `settings`."""
        return self._call(calls.generate(name, merged(settings, keywords)), texts, timeout)

    @overload
    def summarize(
        self, name: str, texts: str, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> Generation: ...
    @overload
    def summarize(
        self, name: str, texts: Many, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> list[Generation]: ...
    def summarize(
        self, name: str, texts: Texts, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> Any:
        """Summarize texts with the parameters of `generate`; `long="chunk"` summarizes texts of any length."""
        make = calls.generate(name, merged(settings, keywords))
        check_summarizer(run(self._session.metadata(name, timeout)))
        return self._call(make, texts, timeout)

    def stream(
        self, name: str, text: str, settings: Preset = None, *, timeout: Seconds = None, **keywords: Unpack[Settings]
    ) -> TextStream:
        """Return a context manager that yields the text of `generate` in pieces as they are generated."""
        call = calls.stream(name, text, merged(settings, keywords))
        return TextStream(self._session, name, call, timeout)

    def close(self) -> None:
        """Close the connection; calls in progress in other threads or tasks end with RequestCancelled."""
        run(self._session.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call(self, make: Callable[[str], Call[Any]], texts: Texts, timeout: Seconds) -> Any:
        if isinstance(texts, str):
            return run(self._session.call(make(texts), timeout))
        calls.check_iterable(texts)
        return self._call_all(make, texts, timeout)
