"""Requests that come one by one to a library without a server: when each is due, and static batches of those that wait.

Owns the clock of a load inside the peer's process. How a batch is computed stands with each peer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench.peers.words import Words


@dataclass(frozen=True)
class TextLoad:
    """Texts, each to be continued by exactly so many tokens, sent in turn and again from the start when used up.

    Requests are due at the seconds `at`. Where `again`, these are callers: each sends the next one when its last is
    over, until there were `count` or `seconds` have passed. `rows` may be computed at a time where rows come and go,
    `batch` where they stay together, prompts of which are at most `unlike` times as long as another.
    """

    texts: tuple[tuple[str, int], ...]
    at: tuple[float, ...]
    again: bool = False
    count: int | None = None
    seconds: float | None = None
    warm: int = 0
    batch: int = 8
    unlike: float = 1.5

    @property
    def warming(self) -> TextLoad | None:
        """What comes before."""
        if not self.warm:
            return None
        return replace(self, at=(0.0,) * self.warm, again=False, count=self.warm, seconds=None, warm=0)


@dataclass
class Times:
    """One request: seconds from the start of the load, 0 where it has not come so far; and its tokens."""

    due: float
    caller: int = 0
    first: float = 0.0
    end: float = 0.0
    read: int = 0
    written: int = 0


@dataclass
class Line:
    """Requests in the order in which they are due; of callers, each comes when another is over."""

    at: Sequence[float]
    again: bool = False
    count: int | None = None
    seconds: float | None = None
    times: list[Times] = field(default_factory=list)
    begin: float = 0.0
    _taken: int = 0

    def __post_init__(self) -> None:
        self.times = [
            Times(due, caller=number if self.again else 0) for number, due in enumerate(self.at[: self.count])
        ]

    def start(self) -> None:
        """From now on the clock runs."""
        self.begin = time.perf_counter()

    @property
    def now(self) -> float:
        """Seconds from the start."""
        return time.perf_counter() - self.begin

    @property
    def next(self) -> float | None:
        """When the next one is due; None where none is until another is over."""
        return self.times[self._taken].due if self._taken < len(self.times) else None

    def take(self) -> list[int]:
        """The numbers of those that are due by now."""
        now, first = self.now, self._taken
        while self._taken < len(self.times) and self.times[self._taken].due <= now:
            self._taken += 1
        return list(range(first, self._taken))

    def wait(self) -> None:
        """Sleep until the next one is due."""
        if self.next is not None and (left := self.next - self.now) > 0:
            time.sleep(left)

    def over(self, number: int, written: int, end: float) -> None:
        """A request has its last token; its caller sends another."""
        self.times[number].written, self.times[number].end = written, end
        fewer = self.count is None or len(self.times) < self.count
        if self.again and fewer and (self.seconds is None or end < self.seconds):
            self.times.append(Times(end, self.times[number].caller))


@dataclass(frozen=True)
class Prompt:
    """A request that has come: token ids, and how many new ones it wants."""

    ids: Sequence[int]
    new: int


# Computes prompts together; calls `told(row, tokens so far)` at each new token, and once more than `new` for none.
ServeBatch = Callable[[Sequence[Prompt], Callable[[int, int], None]], None]
Find = Callable[[int], Prompt]  # the request with this number


def serve_batches(line: Line, find: Find, serve: ServeBatch, rows: int, unlike: float) -> None:
    """Static batches of at most `rows`: the oldest that waits, and those like it, as soon as one is over."""
    waiting: dict[int, Prompt] = {}
    line.start()
    while waiting or line.next is not None:
        if not waiting:
            line.wait()
        waiting.update((number, find(number)) for number in line.take())
        chosen = alike({number: len(prompt.ids) for number, prompt in waiting.items()}, unlike)[:rows]
        batch = [waiting.pop(number) for number in chosen]

        def told(row: int, tokens: int, chosen: Sequence[int] = chosen, batch: Sequence[Prompt] = batch) -> None:
            if tokens == 1:
                line.times[chosen[row]].first = line.now
            if tokens == batch[row].new:
                line.over(chosen[row], tokens, line.now)

        serve(batch, told)


def alike(lengths: dict[int, int], unlike: float) -> list[int]:
    """The first of those that wait (number -> length of its prompt), and those whose prompts are about as long."""
    first = next(iter(lengths.values()))
    return [number for number, length in lengths.items() if max(length, first) <= unlike * min(length, first)]


class Texts:
    """The requests of a TextLoad as prompts: read when they come, inside the clock."""

    def __init__(self, load: TextLoad, words: Words, line: Line) -> None:
        self._load = load
        self._words = words
        self._line = line

    def __call__(self, number: int) -> Prompt:
        """The request with this number."""
        text, new = self._load.texts[number % len(self._load.texts)]
        ids = self._words.encode([text], new)[0]
        self._line.times[number].read = len(ids)
        return Prompt(ids, new)
