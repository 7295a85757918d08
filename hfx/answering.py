"""Models that answer requests, behind a server or in this process, and concurrent calls with results in order.

`Model` is the common interface of both kinds of models; `hfx.client.served` and `hfx.local.models` open them.
`ordered_map` and `map_all` call a function for many items in threads, and cancel the calls in progress when no more
results are wanted.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from hfx import names
from hfx.errors import HfxError, RequestCancelled
from hfx.metadata import ModelMetadata
from hfx.names import Task
from hfx.python_backends.generation.pieces import Token

Request = dict[str, list[Any]]  # input tensor -> the values of one row
Answer = dict[str, Any]  # output tensor -> one row as plain values: `plain_values`
ALWAYS_LISTS = (
    names.LABEL, names.EMBEDDING, names.OUTPUT_LOG_PROBS, names.PROMPT_LOG_PROBS, *names.TOKEN_TABLES,
    *names.PROMPT_TOKEN_TABLES,
)  # fmt: skip
JSON_TEXTS = (names.ENTITIES, names.FILLS, names.ANSWERS)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Piece:
    """The next part of a text.

    `finish_reason` is empty except in the last piece, whose text may be empty: "stop" (an end token or a stop word) or
    "length" (max_tokens, or the model is full). The counts are for the request so far: the tokens that the model has
    read, the tokens that it has generated, and the tokens of the input that were left out. With `return_log_probs` or
    `logprobs`, `log_probs` has the log-probabilities of the tokens since the previous piece. With `logprobs`, `tokens`
    has these tokens. With `prompt_logprobs`, the first pieces have the tokens of the prompt, in order.
    """

    text: str
    finish_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    truncated_tokens: int = 0
    log_probs: tuple[float, ...] = ()
    tokens: tuple[Token, ...] = ()
    prompt_tokens: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Model:
    """An opened model; `answer` may be called from `at_once` threads, and raises HfxError.

    `stream` yields the text of a generator as it is generated (None for an encoder); closing it cancels the request.
    `answer_many` answers requests together, faster than one by one (None if there is no such way). `sha256` is the hash
    of the model's files (empty: unknown). `is_unchanged` raises ModelChanged if another model answers by now, and
    returns False if that can't be determined at present.
    """

    task: Task
    metadata: ModelMetadata
    answer: Callable[[Request], Answer]
    stream: Callable[[Request], Generator[Piece, None, None]] | None
    at_once: int
    answer_many: Callable[[Sequence[Request]], list[Answer | HfxError]] | None = None
    sha256: str = ""
    is_unchanged: Callable[[], bool] = lambda: True

    def answer_each(
        self, items: Iterable[Item], request_of: Callable[[Item], Request]
    ) -> Generator[tuple[Item, Answer | HfxError], None, None]:
        """Yield each item, in order, with the answer to its request, or with the HfxError that was raised.

        `request_of` makes the request from an item, and its HfxError is yielded as well. At most `at_once` items are
        read and not yet yielded. Close the generator to cancel the requests in progress.
        """
        return ordered_map(lambda item: self.answer(request_of(item)), items, self.at_once)


def plain_values(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert output tensors of one row (arrays, lists or values) to values of JSON, under the tensors' names.

    A tensor with one value becomes that value, but labels, their scores, an embedding, log-probabilities and the
    tensors about tokens always become lists. The JSON texts of `entities`, `fills` and `answers` become lists. A number
    that JSON lacks (NaN) becomes None. Log-probabilities that were not requested, for which a server sends an empty
    tensor, are left out.
    """
    lists = {*ALWAYS_LISTS, *([names.SCORE] if names.LABEL in outputs else [])}
    values = {name: _plain(name, value, name in lists) for name, value in outputs.items()}
    return {name: value for name, value in values.items() if name != names.OUTPUT_LOG_PROBS or value}


def _plain(name: str, value: Any, is_list: bool) -> Any:
    value = _json_value(value)
    if not is_list and isinstance(value, list) and len(value) == 1 and not isinstance(value[0], dict):
        value = value[0]
    if is_list and not isinstance(value, list):
        value = [value]
    return json.loads(value) if name in JSON_TEXTS and isinstance(value, str) else value


def _json_value(value: Any) -> Any:
    if hasattr(value, "tolist"):  # a numpy array or number
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> Generator[tuple[Item, Result | HfxError], None, None]:
    """Yield each item with the result or HfxError of `function`, in order.

    At most `at_once` items are read and not yet yielded. Other exceptions, from `function` or from `items`, are raised
    in the place of their item. The threads that call `function` also read `items`, so that a source that pauses does
    not delay a result.
    """
    workers = _Workers(function, items, at_once)
    completed: dict[int, tuple[Item, Future[Result | HfxError]]] = {}
    position = 0
    with closing(workers.completed()) as coming:
        for number, item, outcome in coming:
            completed[number] = item, outcome
            while position in completed:
                item, outcome = completed.pop(position)
                yield item, outcome.result()
                position += 1
                workers.release()


def map_all(function: Callable[[Item], Result], items: Iterable[Item], at_once: int) -> list[Result]:
    """Return the results of all items, in order.

    The first HfxError cancels the other calls, and is raised with the index of its item.
    """
    workers = _Workers(function, items, at_once)
    results: dict[int, Result] = {}
    with closing(workers.completed()) as coming:
        for number, _, outcome in coming:
            result = outcome.result()
            if isinstance(result, HfxError):
                raise at_index(number, result)
            results[number] = result
            workers.release()
    return [results[number] for number in range(len(results))]


def at_index(index: int, error: HfxError) -> HfxError:
    """Return `error` with the index of its item in the message."""
    return error.with_message(f"At index {index}: {error.message}")


@contextmanager
def cancellable(cancel: Callable[[], object]) -> Iterator[None]:
    """Let `cancel` end a wait in the block, on Ctrl-C or when the map of the thread is closed."""
    scope = _scope.get()
    try:
        if scope is None:
            yield
        else:
            with scope.holding(cancel):
                yield
    except BaseException:
        cancel()
        raise


def pause(seconds: float) -> None:
    """Sleep. Raises RequestCancelled if the map that the thread works for is closed in the meantime."""
    scope = _scope.get()
    if scope is None:
        time.sleep(seconds)
    elif scope.closed.wait(seconds):
        raise RequestCancelled("The request was cancelled before it was sent again.")


class _Scope:
    """The calls in progress in the threads of one map."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self._cancels: dict[object, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self.closed.set()
            cancels = tuple(self._cancels.values())
        for cancel in cancels:
            cancel()

    @contextmanager
    def holding(self, cancel: Callable[[], object]) -> Iterator[None]:
        key = object()
        with self._lock:
            self._cancels[key] = cancel
        if self.closed.is_set():
            cancel()
        try:
            yield
        finally:
            with self._lock:
                del self._cancels[key]


_scope: ContextVar[_Scope | None] = ContextVar("scope", default=None)


class _Workers(Generic[Item, Result]):
    """The threads of a map. Each starts the next one when it has read an item.

    They are daemon threads, so that an interrupted program ends at once.
    """

    def __init__(self, function: Callable[[Item], Result], items: Iterable[Item], at_once: int) -> None:
        self._function = function
        self._items = iter(items)
        self._at_once = at_once
        self._scope = _Scope()
        self._room = threading.Semaphore(at_once)
        self._reading = threading.Lock()
        self._read = 0
        self._ended = False
        self._completed: SimpleQueue[tuple[int, Any, Future[Result | HfxError] | None]] = SimpleQueue()

    def completed(self) -> Generator[tuple[int, Item, Future[Result | HfxError]], None, None]:
        """Yield positions, items and outcomes in order of completion. Call `release` for each, to read another item."""
        received, total = 0, None
        self._start()
        try:
            while received != total:
                position, item, outcome = self._completed.get()
                if outcome is None:
                    total = position
                else:
                    received += 1
                    yield position, item, outcome
        finally:
            self._scope.close()
            for _ in range(self._at_once):
                self.release()

    def release(self) -> None:
        """Make room for another item."""
        self._room.release()

    def _start(self) -> None:
        threading.Thread(target=self._work, name="hfx-map", daemon=True).start()

    def _work(self) -> None:
        _scope.set(self._scope)
        while (entry := self._next()) is not None:
            position, item = entry
            outcome: Future[Result | HfxError] = Future()
            try:
                outcome.set_result(self._function(item))
            except HfxError as error:
                outcome.set_result(error)
            except BaseException as error:
                outcome.set_exception(error)
            self._completed.put((position, item, outcome))

    def _next(self) -> tuple[int, Item] | None:
        self._room.acquire()
        with self._reading:
            position = self._read
            if self._ended or self._scope.closed.is_set():
                return None
            try:
                item = next(self._items)
            except StopIteration:
                self._ended = True
                self._completed.put((position, None, None))
                return None
            except BaseException as error:
                self._ended = True
                failed: Future[Result | HfxError] = Future()
                failed.set_exception(error)
                self._completed.put((position, None, failed))
                return None
            self._read += 1
            if self._read < self._at_once:
                self._start()
            return position, item
