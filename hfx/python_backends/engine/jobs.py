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

# Of guesses: see Drafter.
NGRAM = 3  # tokens that a place must have in common with the sequence's end
SHORTEST = 3  # tokens of a guess; twice as many after each that was right
LONGEST_PAUSE = 64  # steps without a guess; twice as many after each that was wrong from its first token


class Drafter:
    """Prompt lookup: guesses at what a sequence goes on with, from where its last tokens stood before.

    Summaries, answers and code copy from their prompt. A guess changes no answer, as each token is chosen from the
    model's own scores (Picker.pick); where it is right, one run of the model gives several tokens. With one guessed
    token a run takes about 1.1 times as long as a step, with 7 1.2 times, with 15 1.7 to 2.1 times (distilgpt2,
    Flan-T5-base and BART-large in int8, docs/benchmarks-generation.md).

    A guess has at most `most` tokens. At most `max_tokens` follow `prompt`.
    """

    def __init__(self, prompt: Ids, most: int, max_tokens: int) -> None:
        self._tokens = list(prompt)
        self._end = len(prompt) + max_tokens
        self._most = most
        self._length = min(SHORTEST, most)
        self._guessed = 0
        self._pause, self._next_pause = 0, 1
        # The position that the sequence is taken to copy next; it stays beside it through a few other tokens.
        self._place: int | None = None
        self._after: dict[Ids, int] = {}  # n-gram -> the last position behind it, of those up to `_indexed`
        self._indexed = NGRAM - 1

    def guess(self) -> Ids:
        """The tokens that may be next, none where there is no reason for a guess."""
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
        # A run gives a token more than were guessed.
        guess = tuple(tokens[place : place + min(self._length, self._end - end - 1)])
        self._guessed = len(guess)
        return guess

    def take(self, chosen: Events, accepted: int) -> None:
        """What was chosen after the last guess, of which so many tokens were right."""
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
        """The last place with the n-gram that the tokens end with; those since the last call are indexed first."""
        tokens, end = self._tokens, len(self._tokens)
        for at in range(self._indexed + 1, end):
            self._after[tuple(tokens[at - NGRAM : at])] = at
        self._indexed = max(self._indexed, end - 1)
        return self._after.get(tuple(tokens[-NGRAM:]))


@dataclass(frozen=True)
class Listener:
    """What a reader is notified by: `notify` is called with the keys of all listeners that have news, once a step.

    The engine's thread calls it, so it must only hand over.
    """

    notify: Callable[[list[Any]], None]
    key: Hashable


@dataclass(eq=False)
class Sequence:
    """One search in the engine.

    `rows` are its rows in the partition of `width`, one for each row of the search, and empty until it has a place.
    `length` counts the positions in its cache. `feed` is what its rows must be fed with, empty where the argmax of the
    last run, which is in place already, is right. `copies` are to be made before the next run: (source, target) as
    indices of `rows`. `prompt_left` is what the decoder is still to be fed with before the first choice
    (encoder-decoders). `drafter` guesses its next tokens, where guesses can be verified.
    """

    search: Search
    job: Job = field(repr=False)
    width: int
    rows: list[int] = field(default_factory=list)
    length: int = 0
    feed: Ids = ()
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
        """Row i of the search goes on from what its row `parents[i]` held.

        One child of each parent takes over the parent's row as it is; only the others are copied, to rows of parents
        without children. So nothing that is copied from is copied to.
        """
        heirs: dict[int, int] = {}
        for child, parent in enumerate(parents):
            heirs.setdefault(parent, child)
        childless = [row for parent, row in enumerate(self.rows) if parent not in heirs]
        self.copies = tuple((heirs[parent], child) for child, parent in enumerate(parents) if heirs[parent] != child)
        self.rows = [
            self.rows[parent] if heirs[parent] == child else childless.pop() for child, parent in enumerate(parents)
        ]


class Job:
    """A request in the engine, as `Engine.submit` returns it: for any thread, and for the scheduler.

    Iterate it for the request's events as they come: one for each new token of greedy decoding and sampling, and one
    for the end of each sequence. `result()` waits for the ends. Both raise the request's EngineError if it failed, the
    iterator after the events before it. Set `on_events` to be notified of new events, `on_end` of the request's end;
    then look for those that were there before, by `poll()` and `done`.

    The rest is the engine's. `prompt` is what is prefilled, or encoded; `arrival` numbers the requests; `batch` is the
    number of the batch that runs it (fair_scheduler.py); `admitted` jobs have their rows reserved; `prefilled`
    positions of the prompt have been run; what is `over` gets no more tokens; `tokens` have been written so far.
    `submitted`, `began`, when the prompt was first run, `first_choice`, when its run gave a choice, `last_token` and
    `ended` (all 0 before) are in seconds of `time.monotonic`.
    """

    def __init__(self, request: Request, rows: int, prompt: Ids) -> None:
        self.request = request
        self.rows = rows
        self.prompt = prompt
        self.sequences: tuple[Sequence, ...] = ()
        self.arrival = self.batch = self.prefilled = self.tokens = 0
        self.admitted = self.over = False
        self.submitted = self.began = self.first_choice = self.last_token = self.ended = 0.0
        self.on_cancel: Callable[[Job], None] | None = None
        self.on_events: Listener | None = None
        self.on_end: Listener | None = None
        self._arrived: queue.SimpleQueue[Events | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._ends: list[Event] = []
        self._failure: EngineError | None = None

    @property
    def done(self) -> bool:
        """Whether all events are there, though they may not have been read."""
        return self._done.is_set()

    def cancel(self) -> None:
        """End the request soon: its sequences end with the reason "cancelled". From any thread, any number of times."""
        if (on_cancel := self.on_cancel) is not None:
            on_cancel(self)

    def result(self, timeout: float | None = None) -> tuple[Event, ...]:
        """The ends of all sequences, by index. Raises TimeoutError after `timeout` seconds, or the failure."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"the request is not done after {timeout} s")
        if self._failure is not None:
            raise self._failure
        return tuple(sorted(self._ends, key=lambda event: event.index))

    def poll(self) -> Events | None:
        """New events, without waiting, which may be none; None when they are at their end.

        Raises the failure there.
        """
        try:
            events = self._arrived.get_nowait()
        except queue.Empty:
            return ()
        if events is None:
            self._end()
        return events

    def __iter__(self) -> Iterator[Event]:
        while (events := self._arrived.get()) is not None:
            yield from events
        self._end()

    def deliver(self, events: Events, failure: EngineError | None = None) -> tuple[Listener | None, ...]:
        """More events, the last ones if it is over, and why it failed. Returns the listeners.

        What is over is freed without the garbage collector: the sequences, which refer to it, are released.
        """
        self._ends += [event for event in events if event.finish_reason]
        if events:
            self._arrived.put(events)
        if not self.over:
            return (self.on_events,)
        self._failure, self.ended = failure, time.monotonic()
        self.on_cancel = None
        self.sequences = ()
        self._done.set()
        self._arrived.put(None)
        listeners = (self.on_events, self.on_end)  # only now: a reader that has not seen the end has set one
        self.on_events = self.on_end = None  # whose keys may hold the reader
        return listeners

    @property
    def all_rows(self) -> Ids:
        """The rows of all its sequences."""
        return tuple(row for sequence in self.sequences for row in sequence.rows)

    @property
    def unfinished(self) -> list[Sequence]:
        """The sequences that go on."""
        return [sequence for sequence in self.sequences if not sequence.over]

    def _end(self) -> None:
        self._arrived.put(None)  # for the next iteration
        if self._failure is not None:
            raise self._failure


def new_job(request: Request, has_encoder: bool) -> Job:
    """The job of a request that was checked. With an encoder, its partition is as wide as it has beams; else 1."""
    searches = new_searches(request)
    rows = sum(search.rows for search in searches)
    job = Job(request, rows, request.prompt if has_encoder else tuple(searches[0].prompt))
    job.sequences = tuple(Sequence(search, job, search.rows if has_encoder else 1) for search in searches)
    return job


def new_searches(request: Request) -> list[Search]:
    """One search for all beams, else one for each sequence to return."""
    if request.settings.num_beams > 1:
        return [BeamSearch(request)]
    return [SingleSearch(request, index) for index in range(request.settings.num_return_sequences)]


def notify_all(listeners: Iterable[Listener | None]) -> None:
    """Notify all that there are, with one call for each thread."""
    news: dict[Callable[[list[Any]], None], list[Any]] = {}
    for listener in listeners:
        if listener is not None:
            news.setdefault(listener.notify, []).append(listener.key)
    for notify, keys in news.items():
        notify(keys)
