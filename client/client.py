"""The client of a served model: one method a task, typed results, typed errors.

A text gives one result, a list of texts a list in the same order; the `*_each` methods take any iterable and yield a
result or an error for each text. Lists travel as one request a text, a bounded number at a time, and Triton batches
them. This file must not know protocols (transport.py) or how tensors become results (results.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat, takewhile
from types import TracebackType
from typing import Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from hfx.client.inputs import (
    Values,
    check_text,
    classification_values,
    question_values,
    text_values,
    to_tensors,
    zero_shot_values,
)
from hfx.client.results import (
    Answer,
    Classification,
    Embedding,
    Entities,
    decode_answer,
    decode_classification,
    decode_embedding,
    decode_entities,
)
from hfx.client.transport import GrpcTransport, ModelMetadata, Pending, Transport, check_timeout
from hfx.client.wire import Array, Tensors
from hfx.errors import HfxError, UsageError
from hfx.names import EMBEDDING

# A str is an iterable of strings too, which mypy calls an unsafe overlap: the first overload wins, as meant.

Result = TypeVar("Result")
Make = Callable[[], Values]  # the inputs of one request, checked only when its turn comes
Decode = Callable[[Tensors], Result]


class Client:
    """A connection to a Triton server's gRPC port; a context manager, safe to share between threads.

    `url` is HOST:PORT. Each request must be answered within `timeout` seconds. Of a list, at most `window` requests
    are on their way at a time. `transport` replaces the gRPC connection (and then `url` is not used).

    All methods raise UsageError (a text that can't be sent), ServerUnreachable, ServerBusy (queue full, or no answer
    in time), RequestRefused (with the server's reason; for an unknown model: which there are).
    """

    def __init__(
        self,
        url: str = "127.0.0.1:8001",
        *,
        timeout: float = 60.0,
        window: int = 32,
        transport: Transport | None = None,
    ) -> None:
        self.timeout = check_timeout(timeout)
        if window < 1:
            raise UsageError(f"A window of {window} requests sends nothing.", "Give at least 1.")
        self.window = window
        self._transport = transport or GrpcTransport(url)
        self.url = self._transport.url

    def is_ready(self) -> bool:
        """Whether the server answers and all of its models are ready."""
        return self._transport.is_ready()

    def models(self) -> list[str]:
        """The names to ask for, sorted: the ready models without the members of ensembles."""
        return self._transport.models(self.timeout)

    def metadata(self, name: str) -> ModelMetadata:
        """The input and output tensors of model NAME."""
        return self._transport.metadata(check_text(name, "model's name"), self.timeout)

    def infer(self, name: str, values: Values) -> dict[str, Array]:
        """Any model by its tensors: plain values in (a batch dimension is added), output tensors [1, …] out."""
        return self._one(name, lambda: values, dict)

    def infer_each(self, name: str, requests: Iterable[Values]) -> Iterator[dict[str, Array] | HfxError]:
        """As `infer`, for many: yields output tensors or an error for each, in order."""
        return self._each(name, (partial(_same, values) for values in requests), dict)

    @overload
    def classify(self, name: str, texts: str, top_k: int | None = None) -> Classification: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, name: str, texts: Iterable[str], top_k: int | None = None) -> list[Classification]: ...
    def classify(
        self, name: str, texts: str | Iterable[str], top_k: int | None = None
    ) -> Classification | list[Classification]:
        """The best `top_k` labels of each text (the model's own number without it)."""
        if isinstance(texts, str):
            return self._one(name, lambda: classification_values(texts, top_k), decode_classification)
        return _all(partial(self.classify_each, name, top_k=top_k), texts)

    def classify_each(
        self, name: str, texts: Iterable[str], top_k: int | None = None
    ) -> Iterator[Classification | HfxError]:
        """As `classify`, one by one: yields a result or an error for each text, in order."""
        return self._each(name, (partial(classification_values, text, top_k) for text in texts), decode_classification)

    @overload
    def label_tokens(self, name: str, texts: str) -> Entities: ...  # type: ignore[overload-overlap]
    @overload
    def label_tokens(self, name: str, texts: Iterable[str]) -> list[Entities]: ...
    def label_tokens(self, name: str, texts: str | Iterable[str]) -> Entities | list[Entities]:
        """The entities of each text."""
        if isinstance(texts, str):
            return self._one(name, lambda: text_values(texts), decode_entities)
        return _all(partial(self.label_tokens_each, name), texts)

    def label_tokens_each(self, name: str, texts: Iterable[str]) -> Iterator[Entities | HfxError]:
        """As `label_tokens`, one by one: yields a result or an error for each text, in order."""
        return self._each(name, (partial(text_values, text) for text in texts), decode_entities)

    @overload
    def answer(self, name: str, question: str, context: str) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def answer(self, name: str, question: Iterable[str], context: str | Iterable[str]) -> list[Answer]: ...
    def answer(self, name: str, question: str | Iterable[str], context: str | Iterable[str]) -> Answer | list[Answer]:
        """The answer that `context` gives to `question`; of lists, pair by pair (one context serves all questions)."""
        if isinstance(question, str):
            if not isinstance(context, str):
                raise UsageError("There is one question but a list of contexts.", "Give as many questions as contexts.")
            return self._one(name, lambda: question_values(question, context), decode_answer)
        return _all(partial(self.answer_each, name), _pairs(question, context))

    def answer_each(self, name: str, pairs: Iterable[tuple[str, str]]) -> Iterator[Answer | HfxError]:
        """As `answer`, for (question, context) pairs: yields a result or an error for each, in order."""
        return self._each(name, (partial(question_values, *pair) for pair in pairs), decode_answer)

    def embed(self, name: str, texts: str | Iterable[str]) -> npt.NDArray[np.float32]:
        """The vectors of the texts: float32 of shape [d] for a text, [number of texts, d] for a list."""
        if isinstance(texts, str):
            return self._one(name, lambda: text_values(texts), decode_embedding).vector
        vectors = [embedding.vector for embedding in _all(partial(self.embed_each, name), texts)]
        return np.stack(vectors) if vectors else np.empty((0, self._width(name)), np.float32)

    def embed_each(self, name: str, texts: Iterable[str]) -> Iterator[Embedding | HfxError]:
        """As `embed`, one by one: yields an Embedding or an error for each text, in order."""
        return self._each(name, (partial(text_values, text) for text in texts), decode_embedding)

    @overload
    def zero_shot(  # type: ignore[overload-overlap]
        self,
        name: str,
        texts: str,
        labels: Iterable[str],
        multi_label: bool | None = None,
        top_k: int | None = None,
    ) -> Classification: ...
    @overload
    def zero_shot(
        self,
        name: str,
        texts: Iterable[str],
        labels: Iterable[str],
        multi_label: bool | None = None,
        top_k: int | None = None,
    ) -> list[Classification]: ...
    def zero_shot(
        self,
        name: str,
        texts: str | Iterable[str],
        labels: Iterable[str],
        multi_label: bool | None = None,
        top_k: int | None = None,
    ) -> Classification | list[Classification]:
        """The scores of the candidate `labels` for each text; with `multi_label` each label is judged by itself."""
        if isinstance(texts, str):
            return self._one(name, lambda: zero_shot_values(texts, labels, top_k, multi_label), decode_classification)
        return _all(partial(self.zero_shot_each, name, labels=labels, multi_label=multi_label, top_k=top_k), texts)

    def zero_shot_each(
        self,
        name: str,
        texts: Iterable[str],
        labels: Iterable[str],
        multi_label: bool | None = None,
        top_k: int | None = None,
    ) -> Iterator[Classification | HfxError]:
        """As `zero_shot`, one by one: yields a result or an error for each text, in order."""
        candidates = labels if isinstance(labels, str) else list(labels)
        makes = (partial(zero_shot_values, text, candidates, top_k, multi_label) for text in texts)
        return self._each(name, makes, decode_classification)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _one(self, name: str, make: Make, decode: Decode[Result]) -> Result:
        return decode(self._send(name, make).result())

    def _each(self, name: str, makes: Iterable[Make], decode: Decode[Result]) -> Iterator[Result | HfxError]:
        waiting: deque[Pending] = deque()
        try:
            for make in makes:
                waiting.append(self._submit(name, make))
                if len(waiting) == self.window:
                    yield _settle(waiting.popleft(), decode)
            while waiting:
                yield _settle(waiting.popleft(), decode)
        finally:  # whoever stops reading early leaves nothing running
            for pending in waiting:
                pending.cancel()

    def _submit(self, name: str, make: Make) -> Pending:
        try:
            return self._send(name, make)
        except HfxError as error:
            return _Unsent(error)

    def _send(self, name: str, make: Make) -> Pending:
        return self._transport.submit(check_text(name, "model's name"), to_tensors(make()), self.timeout)

    def _width(self, name: str) -> int:
        return next((max(t.shape[-1], 0) for t in self.metadata(name).outputs if t.name == EMBEDDING), 0)


class _Unsent:
    """A request that could not even be sent, in its place among the pending ones."""

    def __init__(self, error: HfxError) -> None:
        self._error = error

    def result(self) -> dict[str, Array]:
        raise self._error

    def cancel(self) -> None:
        pass


def _settle(pending: Pending, decode: Decode[Result]) -> Result | HfxError:
    try:
        return decode(pending.result())
    except HfxError as error:
        return error


Item = TypeVar("Item")


def _all(each: Callable[[Iterable[Item]], Iterator[Result | HfxError]], items: Iterable[Item]) -> list[Result]:
    """All results, or the first error: nothing more is sent then, and what is on its way is waited for."""
    results: list[Result] = []
    failures: list[HfxError] = []
    for index, outcome in enumerate(each(takewhile(lambda _: not failures, items))):
        if isinstance(outcome, HfxError):
            failures.append(_at(index, outcome))
        else:
            results.append(outcome)
    if failures:
        raise failures[0]
    return results


def _at(index: int, error: HfxError) -> HfxError:
    located = type(error)(f"At index {index}: {error.message}", error.fix)
    located.__cause__ = error
    return located


def _pairs(questions: Iterable[str], contexts: str | Iterable[str]) -> Iterable[tuple[str, str]]:
    if isinstance(contexts, str):
        return zip(questions, repeat(contexts), strict=False)
    first, second = list(questions), list(contexts)
    if len(first) != len(second):
        raise UsageError(
            f"There are {len(first)} questions but {len(second)} contexts.",
            "Give one context for all, or one for each.",
        )
    return zip(first, second, strict=True)


def _same(values: Values) -> Values:
    return values
