"""A request in the engine: its events for the caller, its sequences, and guesses at their next tokens."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..checks import Ids
from ..errors import EngineError
from .beam import BeamSearch
from .request import Event, Request
from .sampling import SingleSearch
from .search import Search

Events = tuple[Event, ...]
Pairs = tuple[tuple[int, int], ...]

# The limits of guesses: see Drafter.
NGRAM = 3  # the number of tokens before a place that must equal the last tokens of the sequence
SHORTEST = 3  # tokens of a first guess; each correct guess doubles the length of the next
LONGEST_PAUSE = 64  # steps without a guess; each guess that was wrong from its first token doubles the next pause


class Drafter:
    """Prompt lookup: guesses the next tokens of a sequence from a place where its last tokens occurred before.

    Summaries, answers and code copy from their prompt. A guess never changes an answer, because each token is chosen
    from the model's own scores (Picker.pick). If a guess is correct, one run of the model gives several tokens.
    Compared with a step without guesses, a run takes about 1.1 times as long with 1 guessed token, 1.2 times with 7,
    and 1.7 to 2.1 times with 15 (distilgpt2, Flan-T5-base and BART-large in int8, docs/benchmarks-generation.md).

    A guess has at most `most` tokens. At most `max_tokens` tokens follow `prompt`.
    """

    def __init__(self, prompt: Ids, most: int, max_tokens: int) -> None:
        self._tokens = list(prompt)
        self._end = len(prompt) + max_tokens
        self._most = most
        self._length = min(SHORTEST, most)
        self._guessed = 0
        self._pause, self._next_pause = 0, 1
        # The position that the sequence is expected to copy next. It advances with the sequence, even if a few tokens
        # differ.
        self._place: int | None = None
        self._after: dict[Ids, int] = {}  # n-gram -> the position behind its last occurrence, up to `_indexed`
        self._indexed = NGRAM - 1

    def guess(self) -> Ids:
        """Return tokens that may come next; empty if there is no reason for a guess."""
        if self._pause:
            self._pause -= 1
            return ()
        tokens, end = self._tokens, len(self._tokens)
        place = self._place
        if place is None or tokens[place - 1] != tokens[-1]:
            place = self._look_up()
            if place is None:
                return ()
            self._place = place
        # A run gives one token more than the guess has.
        guess = tuple(tokens[place : place + min(self._length, self._end - end - 1)])
        self._guessed = len(guess)
        return guess

    def take(self, chosen: Events, accepted: int) -> None:
        """Record the tokens that were chosen after the last guess, and how many of the guessed tokens were correct."""
        before = len(self._tokens)
        for event in chosen:
            self._tokens += event.ids
        if self._place is not None:
            self._place += len(self._tokens) - before
        guessed, self._guessed = self._guessed, 0
        if not guessed:
            return
        if accepted:
            right = accepted == guessed
            self._length = min(2 * self._length if right else max(accepted, SHORTEST), self._most)
            self._next_pause = 1
        else:
            self._length = min(SHORTEST, self._most)
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)

    def _look_up(self) -> int | None:
        """Return the position behind the last earlier occurrence of the n-gram that the tokens end with, or None.

        First, the tokens since the last call are indexed.
        """
        tokens, end = self._tokens, len(self._tokens)
        for at in range(self._indexed + 1, end):
            self._after[tuple(tokens[at - NGRAM : at])] = at
        self._indexed = max(self._indexed, end - 1)
        return self._after.get(tuple(tokens[-NGRAM:]))


@dataclass(frozen=True)
class Listener:
    """How a reader is notified of news.

    Once a step, `notify` is called with the keys of all listeners that share this function and have news.

    The engine's thread calls `notify`, which must only hand the keys over to another thread.
    """

    notify: Callable[[list[Any]], None]
    key: Hashable


@dataclass(eq=False)
class Sequence:
    """A search and its rows in the engine.

    `rows` are its rows in the partition of `width`, one for each row of the search; empty until they are assigned.
    `length` is the number of cached tokens. `next_inputs` has the next input token of each row. It is empty if these
    are the argmax of the last run, which the run has already written as the next input (partition.py). `copies` are the
    copies of cache rows to make before the next run, as (source, target) indices of `rows`. `prompt_left` are the
    tokens that the decoder must still read before the first choice (encoder-decoders). `drafter` guesses the next
    tokens, if guesses can be verified.
    """

    search: Search
    job: Job = field(repr=False)
    width: int
    rows: list[int] = field(default_factory=list)
    length: int = 0
    next_inputs: Ids = ()
    copies: Pairs = ()
    prompt_left: Ids = ()
    chosen: bool = False
    over: bool = False
    drafter: Drafter | None = None

    @property
    def wants_logits(self) -> bool:
        """Whether its next choice needs more than the argmax."""
        return self.search.candidates != 0 or self.search.wants_log_probs

    def follow(self, parents: Ids) -> None:
        """Reassign the rows, so that row i of the search continues what row `parents[i]` held.

        One child of each parent takes over the parent's row as it is. Only the other children get copies, in the rows
        of parents without children. So no row is both a source and a target of copies.
        """
        heirs: dict[int, int] = {}
        for child, parent in enumerate(parents):
            heirs.setdefault(parent, child)
        childless = [row for parent, row in enumerate(self.rows) if parent not in heirs]
        self.copies = tuple((heirs[parent], child) for child, parent in enumerate(parents) if heirs[parent] != child)
        self.rows = [
            self.rows[parent] if heirs[parent] == child else childless.pop() for child, parent in enumerate(parents)
        ]


@dataclass
class Times:
    """Moments in the life of a request, in seconds of `time.monotonic`, and 0 until they are known.

    `began` is when its prompt was first run, and `first_choice` when its first tokens were chosen.
    """

    submitted: float = 0.0
    began: float = 0.0
    first_choice: float = 0.0
    last_token: float = 0.0
    ended: float = 0.0


class Delivery:
    """The events of a request that its reader has not read (`arrived`, None after the last one), and its end.

    `ends` has the last event of each sequence. `failure` is the error with which the request has ended, if any.
    """

    def __init__(self) -> None:
        self.arrived: queue.SimpleQueue[Events | None] = queue.SimpleQueue()
        self.done = threading.Event()
        self.ends: list[Event] = []
        self.failure: EngineError | None = None

    def end(self) -> None:
        """Raise the failure, if any, when the reader has read all events."""
        self.arrived.put(None)  # for the next reader
        if self.failure is not None:
            raise self.failure


class Job:
    """A request in the engine, as `Engine.submit` returns it. Any thread may use it.

    Iterate over a job to get the request's events as they come: one for each new token of greedy decoding and sampling,
    and one for the end of each sequence. `result()` waits for the ends. Both raise the request's EngineError if it
    failed; the iterator first gives the events before the failure. Set `on_events` to be notified of new events, and
    `on_end` of the request's end; then check for earlier ones with `poll()` and `done`.

    The other attributes belong to the engine:

    - for the life of the request: `rows` is the number of its rows, `prompt` the tokens to prefill or encode, `arrival`
      the number of the request, and `batch` the number of the batch that runs it (fair_scheduler.py);
    - until it is over: `sequences`;
    - from step to step: `admitted` says that its rows are reserved, and `over` that it gets no more tokens. `prefilled`
      is the number of prompt positions that have been run, and `tokens` the number of tokens so far.
    """

    def __init__(self, request: Request, rows: int, prompt: Ids) -> None:
        self.request = request
        self.rows = rows
        self.prompt = prompt
        self.arrival = self.batch = 0
        self.sequences: tuple[Sequence, ...] = ()
        self.prefilled = self.tokens = 0
        self.admitted = self.over = False
        self.times = Times()
        self.on_cancel: Callable[[Job], None] | None = None
        self.on_events: Listener | None = None
        self.on_end: Listener | None = None
        self._delivery = Delivery()

    @property
    def done(self) -> bool:
        """Whether all events have been delivered, even if they have not been read."""
        return self._delivery.done.is_set()

    def cancel(self) -> None:
        """End the request soon, with the reason "cancelled". Any thread may call this, any number of times."""
        if (on_cancel := self.on_cancel) is not None:
            on_cancel(self)

    def result(self, timeout: float | None = None) -> tuple[Event, ...]:
        """Return the last event of each sequence, by index.

        Raises TimeoutError after `timeout` seconds, or the failure of the request.
        """
        if not self._delivery.done.wait(timeout):
            raise TimeoutError(f"the request is not done after {timeout} s")
        if self._delivery.failure is not None:
            raise self._delivery.failure
        return tuple(sorted(self._delivery.ends, key=lambda event: event.index))

    def poll(self) -> Events | None:
        """Return new events without waiting, possibly none; None after the last event.

        If the request failed, raises the failure instead of returning None.
        """
        try:
            events = self._delivery.arrived.get_nowait()
        except queue.Empty:
            return ()
        if events is None:
            self._delivery.end()
        return events

    def __iter__(self) -> Iterator[Event]:
        while (events := self._delivery.arrived.get()) is not None:
            yield from events
        self._delivery.end()

    def deliver(self, events: Events, failure: EngineError | None = None) -> tuple[Listener | None, ...]:
        """Add `events`, and return the listeners to notify.

        If the job is over, `events` are its last events, and `failure` is its error if it failed. Such a job releases
        its sequences, which refer to it, so it is freed without the garbage collector.
        """
        delivery = self._delivery
        delivery.ends += [event for event in events if event.finish_reason]
        if events:
            delivery.arrived.put(events)
        if not self.over:
            return (self.on_events,)
        delivery.failure, self.times.ended = failure, time.monotonic()
        self.on_cancel = None
        self.sequences = ()
        delivery.done.set()
        delivery.arrived.put(None)
        # The listeners are read only after `done` is set. A reader sets its listener before it checks `done`, so a
        # reader that found it unset is notified here.
        listeners = (self.on_events, self.on_end)
        self.on_events = self.on_end = None  # their keys may refer to the reader
        return listeners

    @property
    def scored(self) -> bool:
        """Whether the log-probabilities of its prompt are wanted."""
        return self.request.settings.prompt_log_probs is not None

    @property
    def all_rows(self) -> Ids:
        """The rows of all its sequences."""
        return tuple(row for sequence in self.sequences for row in sequence.rows)

    @property
    def unfinished(self) -> list[Sequence]:
        """The sequences that are not over."""
        return [sequence for sequence in self.sequences if not sequence.over]


def new_job(request: Request, has_encoder: bool) -> Job:
    """Return the job of a checked request.

    If the model has an encoder, the width of the job's partition is its number of beams; else it is 1.
    """
    searches = new_searches(request)
    rows = sum(search.rows for search in searches)
    job = Job(request, rows, request.prompt if has_encoder else tuple(searches[0].prompt))
    job.sequences = tuple(Sequence(search, job, search.rows if has_encoder else 1) for search in searches)
    return job


def new_searches(request: Request) -> list[Search]:
    """Return one search for all beams or, without beams, one for each sequence to return."""
    if request.settings.num_beams > 1:
        return [BeamSearch(request)]
    return [SingleSearch(request, index) for index in range(request.settings.num_return_sequences)]


def notify_all(listeners: Iterable[Listener | None]) -> None:
    """Notify the listeners that are not None, with one call of each `notify`."""
    news: dict[Callable[[list[Any]], None], list[Any]] = {}
    for listener in listeners:
        if listener is not None:
            news.setdefault(listener.notify, []).append(listener.key)
    for notify, keys in news.items():
        notify(keys)
