"""Greedy decoding: the best token of the processed scores, as transformers' `generate` without sampling and beams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .request import Completion, Request
from .single import SingleSequence
from .step import Step, check_best


class GreedySearch:
    """A `Search` of one row. While the settings change no score, the graph's argmax is all that it needs."""

    rows = 1
    uses_log_probs = False

    def __init__(self, request: Request, index: int) -> None:
        self._sequence = SingleSequence(request, index)
        self.prompt = self._sequence.prompt
        self.wants_log_probs = self._sequence.wants_log_probs

    @property
    def candidates(self) -> int:
        """1 where a processor changes this step's scores, else 0."""
        return 1 if self.forced is None and self._sequence.edits else 0

    @property
    def forced(self) -> int | None:
        """The token that this step must choose, if it must."""
        return self._sequence.forced

    def feed(self) -> Sequence[int]:
        """The newest token."""
        return (self._sequence.last,)

    def edit(self, scores: NDArray[np.float32]) -> None:
        """Apply the processors."""
        self._sequence.edit(scores)

    def choose(
        self,
        values: NDArray[np.float32] | None,
        ids: NDArray[np.int64] | None,
        log_probs: NDArray[np.float32] | None = None,
    ) -> Step:
        """Take the first of `ids`."""
        assert ids is not None
        if values is not None:
            check_best(float(values[0, 0]))
        return self._sequence.take(int(ids[0, 0]), None if log_probs is None else float(log_probs[0, 0]))

    def cancelled(self) -> tuple[Completion, ...]:
        """What there is."""
        return self._sequence.cancelled()
