"""One sequence as greedy decoding and sampling continue it: its ids, its edits, its events.

Owns what the two share; which token comes next is theirs to say.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .endings import Endings
from .processors import Processors
from .request import Completion, FinishReason, Request, Token
from .step import Step

IN_PLACE = (0,)


class SingleSequence:
    """Sequence `index` of `request`, a row of its own. `prompt` is what the decoder is fed with first."""

    def __init__(self, request: Request, index: int) -> None:
        settings = request.settings
        start = settings.decoder_prompt or request.prompt
        self.wants_log_probs = settings.log_probs
        self._index = index
        self._start = len(start)
        self._endings = Endings(settings, len(start))
        self._processors = Processors(settings, len(start))
        self._ids = np.empty((1, len(start) + settings.max_tokens), np.int64)
        self._ids[0, : len(start)] = start
        self._length = len(start)
        self._log_probs: list[float] = []
        self._reason: FinishReason | None = None
        # A forced first token is fed with the prompt and emitted with the first token that is chosen. The model's own
        # log-probability of a forced token takes a run of its own.
        first = () if self.wants_log_probs else self._endings.fed_first()
        self._untold = [self._append(token, None) for token in first]
        self.prompt: tuple[int, ...] = tuple(self._ids[0, : self._length].tolist())
        self._look_ahead()

    @property
    def generated(self) -> int:
        """The number of tokens after the start."""
        return self._length - self._start

    @property
    def last(self) -> int:
        """The newest token."""
        return int(self._ids[0, self._length - 1])

    def edit(self, scores: NDArray[np.float32]) -> None:
        """Apply the processors to `scores` [1, vocabulary], in place."""
        self.edits.apply(scores)

    def take(self, token: int, log_prob: float | None) -> Step:
        """Append `token`, and what is forced after it unless its log-probability is wanted."""
        emitted = [*self._untold, self._append(token, log_prob)]
        self._untold = []
        self._look_ahead()
        while self.forced is not None and self._reason is None and not self.wants_log_probs:
            emitted.append(self._append(self.forced, None))
            self._look_ahead()
        return Step(IN_PLACE, tuple(emitted), () if self._reason is None else (self._completion(self._reason),))

    def cancelled(self) -> tuple[Completion, ...]:
        """The sequence as far as it has been told of."""
        return (self._completion("cancelled", self.generated - len(self._untold)),)

    def _append(self, token: int, log_prob: float | None) -> Token:
        before = self._ids[0, self._start : self._length]
        if self._endings.ends(before, token):
            self._reason = self._endings.reason(before, token)
        self._ids[0, self._length] = token
        self._length += 1
        if log_prob is not None:
            self._log_probs.append(log_prob)
        return Token(self._index, token, log_prob)

    def _look_ahead(self) -> None:
        if self._reason is None:
            self.forced = self._endings.forced(self.generated)
            self.edits = self._processors.edits(self._ids[:, : self._length])

    def _completion(self, reason: FinishReason, length: int | None = None) -> Completion:
        ids = self._ids[0, self._start : self._length].tolist()[:length]
        log_probs = tuple(self._log_probs[:length]) if self.wants_log_probs else None
        return Completion(self._index, tuple(ids), reason, None, log_probs)
