"""Greedy decoding and sampling: one sequence in a row of its own, continued by the best token or by one drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .checks import Ids
from .processors import Endings, Processors
from .request import Event, FinishReason, Request, Top
from .sampling import Sampler
from .search import Floats, Step, check_best

IN_PLACE = (0,)


class SingleSearch:
    """A `Search` of one row: sequence `index` of `request`.

    Without do_sample it takes the best token of the processed scores, as transformers' `generate` without beams; while
    the settings change no score, the graph's argmax is all that it needs.
    """

    rows = 1
    uses_log_probs = False

    def __init__(self, request: Request, index: int) -> None:
        settings = request.settings
        start = settings.decoder_prompt or request.prompt
        self.wants_log_probs = settings.log_probs
        self.top_count = settings.top_log_probs
        self._index = index
        self._start = len(start)
        self._sampler = Sampler(settings, index) if settings.do_sample else None
        self._endings = Endings(settings, len(start))
        self._processors = Processors(settings, len(start))
        self._ids = np.empty((1, len(start) + settings.max_tokens), np.int64)
        self._ids[0, : len(start)] = start
        self._length = len(start)
        self._log_probs: list[float] = []
        self._top: list[Top] = []
        self._reason: FinishReason | None = None
        # A forced first token is fed with the prompt and emitted with the first token that is chosen. The model's own
        # log-probability of a forced token takes a run of its own.
        first = () if self.wants_log_probs else self._endings.fed_first()
        self._untold = [self._append(token) for token in first]
        self.prompt: Ids = tuple(self._ids[0, : self._length].tolist())
        self._look_ahead()

    @property
    def candidates(self) -> int:
        """The sampler's; of greedy decoding 1 where a processor changes this step's scores; 0 for a forced token."""
        if self.forced is not None:
            return 0
        return self._sampler.candidates if self._sampler else int(bool(self._edits))

    def feed(self) -> Sequence[int]:
        """The newest token."""
        return (int(self._ids[0, self._length - 1]),)

    def edit(self, scores: Floats) -> None:
        """Apply the processors to `scores` [1, vocabulary], in place."""
        self._edits.apply(scores)

    def choose(
        self, values: Floats | None, ids: NDArray[np.int64] | None, log_probs: Floats | None = None, top: Top = ()
    ) -> Step:
        """Take the first of `ids`, or draw one of them or of the whole row; a forced token needs no draw."""
        column = 0 if values is None else self._column(values[0], ids is None)
        token = column if ids is None else int(ids[0, column])
        return self._take(token, None if log_probs is None else float(log_probs[0, column]), top)

    def cancelled(self) -> tuple[Event, ...]:
        """The sequence as far as its tokens were emitted."""
        return (self._completion("cancelled", self._generated - len(self._untold)),)

    @property
    def _generated(self) -> int:
        """The number of tokens after the start."""
        return self._length - self._start

    def _column(self, values: Floats, whole_row: bool) -> int:
        if self._sampler:
            return self._sampler.draw(values, whole_row, self._generated)
        check_best(float(values[0]))
        return 0

    def _take(self, token: int, log_prob: float | None, top: Top) -> Step:
        """Append `token`, and what is forced after it unless its log-probability is wanted."""
        emitted = [*self._untold, self._append(token, log_prob, top)]
        self._untold = []
        self._look_ahead()
        while self.forced is not None and self._reason is None and not self.wants_log_probs:
            emitted.append(self._append(self.forced))
            self._look_ahead()
        return Step(IN_PLACE, tuple(emitted), () if self._reason is None else (self._completion(self._reason),))

    def _append(self, token: int, log_prob: float | None = None, top: Top = ()) -> Event:
        before = self._ids[0, self._start : self._length]
        if self._endings.ends(before, token):
            self._reason = self._endings.reason(before, token)
        self._ids[0, self._length] = token
        self._length += 1
        if log_prob is None:
            return Event(self._index, (token,))
        self._log_probs.append(log_prob)
        self._top += (top,) * bool(self.top_count)
        return Event(self._index, (token,), log_probs=(log_prob,), top=tuple(self._top[-1:]))

    def _look_ahead(self) -> None:
        """What the next step must choose (`forced`), and what is done to its scores."""
        if self._reason is None:
            self.forced = self._endings.forced(self._generated)
            self._edits = self._processors.edits(self._ids[:, : self._length])

    def _completion(self, reason: FinishReason, length: int | None = None) -> Event:
        ids = self._ids[0, self._start : self._length].tolist()[:length]
        log_probs = tuple(self._log_probs[:length]) if self.wants_log_probs else None
        return Event(self._index, tuple(ids), reason, None, log_probs, tuple(self._top[:length]))
