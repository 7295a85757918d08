"""One call's requests: from a text to a run in the engine, and the pieces of its texts as the engine's events come.

A request whose reader stops is cancelled. How a caller waits is in streams.py.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..engine.engine import Engine
from ..engine.errors import DeadlineExceeded, EngineClosed, InvalidRequest, QueueFull
from ..engine.handle import Handle
from ..engine.request import Completion, Event, Request, Token
from .detokenizer import Decoding, Detokenizer
from .documents import parts
from .prompts import Prompt, PromptEncoder, Text
from .results import Piece
from .settings import GenerationConfig
from .stopping import StopStrings
from .streams import PENDING, Script, Waker, work


class Transcript:
    """`tokens` were generated so far, to the one that completed a stop string (`stopped`) at most."""

    def __init__(self, decoding: Decoding, stop_words: Sequence[str]) -> None:
        self._decoding = decoding
        self._stops = StopStrings(stop_words)
        self._log_probs: list[float] = []
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come; what comes after it is left out."""
        return self._stops.found

    def push(self, token: Token) -> str:
        """The text that is decided by the next token."""
        return self._push(token.id, token.log_prob)

    def complete(self, completion: Completion) -> str:
        """The rest of the text; tokens that have not been pushed, as those of beams, are taken from `completion`."""
        text = ""
        for at in range(self.tokens, len(completion.ids)):
            text += self._push(completion.ids[at], None if completion.log_probs is None else completion.log_probs[at])
            if self.stopped:
                return text
        text += self._stops.push(self._decoding.finish())
        return text + self._stops.finish()

    def take_log_probs(self) -> tuple[float, ...]:
        """Those of the tokens since the last call."""
        taken, self._log_probs = tuple(self._log_probs), []
        return taken

    def _push(self, token_id: int, log_prob: float | None) -> str:
        self.tokens += 1
        if log_prob is not None:
            self._log_probs.append(log_prob)
        return self._stops.push(self._decoding.push(token_id))


Submit = Callable[[Prompt, int], "Run"]  # with the number of its document, 0 without one
Read = Callable[["Run"], Script]


class Run:
    """A request that was submitted, with a transcript for each of its texts."""

    def __init__(self, handle: Handle, prompt: Prompt, transcripts: Sequence[Transcript]) -> None:
        self._handle = handle
        self._prompt = prompt
        self._transcripts = transcripts
        self._unread: Iterator[Event] = iter(())

    def cancel(self) -> None:
        """End the request, if it is not over."""
        self._handle.cancel()

    def live(self) -> Script:
        """Pieces as tokens come. Once every text has met a stop string, the engine is told to stop."""
        unfinished = {*range(len(self._transcripts))}
        try:
            while unfinished:
                piece = self._piece((yield self._next_event), unfinished)
                if piece is not None:
                    yield piece
        finally:
            self.cancel()

    def whole(self) -> Script:
        """A single piece for each text, when all are complete: the engine wakes nobody before."""
        try:
            for completion in (yield self._completions):
                yield self._last(completion)
        finally:
            self.cancel()

    def _next_event(self, waker: Waker) -> Any:
        self._handle.notify_events(waker.listener)
        for event in self._unread:
            return event
        arrived = self._handle.poll()
        if arrived is None:
            raise EngineClosed("the engine ended the request before its texts were complete")
        self._unread = iter(arrived)
        return next(self._unread, PENDING)

    def _completions(self, waker: Waker) -> Any:
        self._handle.notify_end(waker.listener)
        return self._handle.result() if self._handle.done else PENDING

    def _piece(self, event: Event, unfinished: set[int]) -> Piece | None:
        if event.index not in unfinished:
            return None
        piece = self._last(event) if isinstance(event, Completion) else self._next(event)
        if piece.finish_reason:
            unfinished.remove(event.index)
        return piece if piece.text or piece.finish_reason else None

    def _next(self, token: Token) -> Piece:
        transcript = self._transcripts[token.index]
        text = transcript.push(token)
        return self._made(token.index, text, "stop" if transcript.stopped else None)

    def _last(self, completion: Completion) -> Piece:
        transcript = self._transcripts[completion.index]
        text = transcript.complete(completion)
        return self._made(completion.index, text, "stop" if transcript.stopped else completion.finish_reason)

    def _made(self, index: int, text: str, finish_reason: str | None) -> Piece:
        transcript = self._transcripts[index]
        has_log_probs = self._prompt.settings.log_probs and (text or finish_reason)
        return Piece(
            text=text,
            index=index,
            finish_reason=finish_reason,
            input_tokens=len(self._prompt.ids),
            output_tokens=transcript.tokens,
            truncated_tokens=self._prompt.truncated_tokens,
            log_probs=transcript.take_log_probs() if has_log_probs else None,
        )


class Cancelled(Exception):
    """The call was cancelled while its texts were divided."""


class Runs:
    """Runs of prompts that follow each other: `at_once` of them, at least 2, are submitted ahead of their reader.

    Prompts are made as they are needed, `slice_size` of them at a time; `count` are made, and `cancelled` says that the
    others will not be. `document` is the number of the one that they are parts of, which is told of
    those that have more than a slice.
    """

    def __init__(
        self, submit: Submit, prompts: Iterator[Prompt], at_once: int, slice_size: int = 1, document: int = 0
    ) -> None:
        self.count = 0
        self.cancelled = False
        self._slice_size = slice_size
        self._document = document
        self._submit = submit
        self._unmade = prompts
        self._at_once = at_once
        self._complete = False
        self._ready: deque[Prompt] = deque()
        self._running: deque[Run] = deque()

    @property
    def at_end(self) -> bool:
        """Whether nothing follows the run that is read."""
        return self._complete and not (self._ready or self._running or self.cancelled)

    def prepare(self, most: int) -> Script:
        """Make prompts until there are `most`, or all of them."""
        while self.count < most and not self._complete:
            yield work(self._prepare)

    def pieces(self, read: Read) -> Script:
        """The pieces of one run after the other. Raises what submitting raises.

        Submits fewer where the engine's queue is full, and more when the first is done.
        """
        try:
            while True:
                yield from self._submit_more()
                if not self._running:
                    return
                yield from read(self._running.popleft())
        finally:
            for run in self._running:
                run.cancel()

    def _submit_more(self) -> Script:
        while len(self._running) < self._at_once:
            if not self._ready:
                if self._complete:
                    return
                yield work(self._prepare)
                continue
            try:
                is_short = self._complete and self.count < self._slice_size
                self._running.append(self._submit(self._ready[0], 0 if is_short else self._document))
            except QueueFull:
                if not self._running:
                    raise
                return
            self._ready.popleft()

    def _prepare(self) -> None:
        try:
            prompts = [*islice(self._unmade, self._slice_size)]
        except Cancelled:
            self.cancelled = self._complete = True
            return
        self._ready += prompts
        self.count += len(prompts)
        self._complete = len(prompts) < self._slice_size


@dataclass
class Submission:
    """Submits the texts of one call, or the parts of one document of it."""

    engine: Engine
    prompts: PromptEncoder
    detokenizer: Detokenizer
    config: GenerationConfig
    deadline: float | None
    _runs: weakref.WeakSet[Run] = field(init=False, default_factory=weakref.WeakSet)
    _cancelled: bool = field(init=False, default=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)  # of the two above

    def prompt(self, text: Text) -> Prompt:
        """The prompt of one text. Raises InvalidRequest and DoesNotFit."""
        return self.prompts.encode(text, self.config)

    def parts(self, text: str) -> Iterator[Prompt]:
        """The prompts of a document's parts, each made when it is asked for. Raises Cancelled and DeadlineExceeded."""
        return map(self.prompt, parts(text, self.prompts, self.config.overlap, self._checkpoint))

    def submit(self, prompt: Prompt, document: int = 0) -> Run:
        """A run of one prompt; its end at once, if the call is cancelled. Raises EngineError in its kinds."""
        handle = self.engine.submit(Request(prompt.ids, prompt.settings, self.deadline, document))
        texts = range(prompt.settings.num_return_sequences)
        run = Run(handle, prompt, [Transcript(self.detokenizer.open(), self.config.stop_words) for _ in texts])
        with self._lock:
            self._runs.add(run)
            cancelled = self._cancelled
        if cancelled:
            run.cancel()
        return run

    def cancel(self) -> None:
        """Cancel every run, those that are submitted later too. From any thread."""
        with self._lock:
            self._cancelled = True
            runs = tuple(self._runs)
        for run in runs:
            run.cancel()

    def _checkpoint(self) -> None:
        if self._cancelled:
            raise Cancelled
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise DeadlineExceeded


def deadline_in(timeout: float | None) -> float | None:
    """The deadline `timeout` seconds from now. Raises InvalidRequest."""
    if timeout is None:
        return None
    if type(timeout) not in (int, float) or not 0 <= timeout < math.inf:
        raise InvalidRequest("timeout", timeout, "seconds, at least 0")
    return time.monotonic() + timeout
