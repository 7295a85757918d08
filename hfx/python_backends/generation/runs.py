"""One prompt in the engine, and the pieces of its texts.

Owns a request's handle from its submission to its end: whoever stops reading has it cancelled. Knows neither texts
before they are prompts nor how a caller waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from ..engine.errors import QueueFull
from ..engine.handle import Handle
from ..engine.request import Completion, Event, Token
from .prompts import Prompt, Text
from .results import Piece
from .transcript import Transcript
from .waits import Completions, NextEvent, Script

Submit = Callable[[Text], "Run"]
Read = Callable[["Run"], Script]


class Run:
    """A request that was submitted, with a transcript for each of its texts."""

    def __init__(self, handle: Handle, prompt: Prompt, transcripts: Sequence[Transcript]) -> None:
        self._handle = handle
        self._prompt = prompt
        self._transcripts = transcripts

    def cancel(self) -> None:
        """End the request, if it is not over."""
        self._handle.cancel()

    def live(self) -> Script:
        """Pieces as tokens come. Once every text has met a stop string, the engine is told to stop."""
        unfinished = {*range(len(self._transcripts))}
        event = NextEvent(self._handle)
        try:
            while unfinished:
                piece = self._piece((yield event), unfinished)
                if piece is not None:
                    yield piece
        finally:
            self.cancel()

    def whole(self) -> Script:
        """A single piece for each text, when all are complete: the engine wakes nobody before."""
        try:
            for completion in (yield Completions(self._handle)):
                yield self._last(completion)
        finally:
            self.cancel()

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


def in_order(submit: Submit, texts: Iterable[Text], read: Read, at_once: int) -> Script:
    """The pieces of one text after the other, while `at_once` texts run already.

    Submits fewer where the engine's queue is full, and more when the first is done. Raises what `submit` raises.
    """
    waiting: deque[Text] = deque(texts)
    running: deque[Run] = deque()
    try:
        while waiting or running:
            _submit_more(submit, waiting, running, at_once)
            yield from read(running.popleft())
    finally:
        for run in running:
            run.cancel()


def _submit_more(submit: Submit, waiting: deque[Text], running: deque[Run], at_once: int) -> None:
    while waiting and len(running) < at_once:
        try:
            running.append(submit(waiting[0]))
        except QueueFull:
            if not running:
                raise
            return
        waiting.popleft()
