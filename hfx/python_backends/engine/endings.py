"""Where a sequence ends, and which of its tokens are forced, counted as transformers' `generate` counts.

Knows no scores: a forced token needs no run of the model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .checks import Ids
from .request import FinishReason, Settings


class Endings:
    """The rules of sequences that start with `start` tokens; `generated` is the number of tokens after those."""

    def __init__(self, settings: Settings, start: int) -> None:
        self._start = start
        self._max_tokens = settings.max_tokens
        self._forced_first = settings.forced_bos_id
        self._forced_last = settings.forced_eos_id
        self._eos = frozenset(settings.eos_ids)
        self._stops: dict[int, list[Ids]] = {}
        for sequence in settings.stop_sequences:
            self._stops.setdefault(sequence[-1], []).append(sequence[:-1])

    def forced(self, generated: int) -> int | None:
        """The id that the next token must have, if it must; a forced first token needs a start of one token."""
        if self._forced_last is not None and generated == self._max_tokens - 1:
            return self._forced_last
        return self._forced_first if self._start + generated == 1 else None

    def fed_first(self) -> Ids:
        """The forced first token if the model can be fed with it beside the start, so that it costs no run."""
        first = self.forced(0)
        if first is None or self.ends(np.empty(0, np.int64), first):
            return ()
        return (first,)

    def ends(self, before: NDArray[np.int64], token: int) -> bool:
        """Whether a sequence whose new tokens are `before` is over with `token`."""
        return len(before) + 1 >= self._max_tokens or self._stopped(before, token)

    def reason(self, before: NDArray[np.int64], token: int) -> FinishReason:
        """Why a sequence that is over is over; an end token that was forced there is no stop."""
        last = len(before) + 1 >= self._max_tokens
        if last and self._forced_last is not None:
            return "length"
        return "stop" if self._stopped(before, token) else "length"

    def _stopped(self, before: NDArray[np.int64], token: int) -> bool:
        if token in self._eos:
            return True
        return any(_ends_with(before, heads) for heads in self._stops.get(token, ()))


def _ends_with(ids: NDArray[np.int64], tail: Ids) -> bool:
    return len(tail) <= len(ids) and tuple(ids[len(ids) - len(tail) :].tolist()) == tail
