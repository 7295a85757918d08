"""Runs of several tokens in one row, which say of each what follows: whether guessed tokens are what is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch_probe import MOST_DRAFT, verifies
from ..checks import Ids
from ..runner import Outputs
from ..spec import EngineSpec
from .binding import Bindables, Binding
from .partition import DecoderPartition


class OrtVerifier:
    """A `Verifier` of row 0 of a partition of width 1, whose graph takes several tokens behind a past."""

    most = MOST_DRAFT

    def __init__(self, partition: DecoderPartition) -> None:
        self._partition = partition
        self._runs: dict[tuple[int, bool], _Run] = {}

    def run(self, draft: Ids, logits: bool) -> Outputs:
        """On memory that was bound for as many tokens the first time."""
        partition, tokens = self._partition, len(draft) + 1
        run = self._runs.get((tokens, logits))
        if run is None:
            run = self._runs[tokens, logits] = self._bind(tokens, logits)
        start, end = int(partition.lengths[0]), int(partition.lengths[0]) + tokens
        run.ids[0] = partition.ids[0, 0], *draft
        run.positions[0] = np.arange(start, end)
        run.last[0], run.total[...] = end - 1, end
        if partition.cross is not None:
            partition.cross.prepare(1)
        run.binding.run()
        partition.start(0, end)
        return Outputs(run.next_ids, partition.logits[:tokens] if logits else None)

    def drop(self, positions: int) -> None:
        """What lies beyond a row's length is never read."""
        self._partition.start(0, int(self._partition.lengths[0]) - positions)

    def _bind(self, tokens: int, logits: bool) -> _Run:
        ids, positions = np.zeros((2, 1, tokens), np.int64)
        last, total, next_ids = np.zeros(1, np.int32), np.zeros((), np.int32), np.zeros((tokens, 1), np.int64)
        inputs: dict[str, Any] = {
            "input_ids": ids,
            "position_ids": positions,
            "seqlens_k": last,
            "total_length": total,
        }
        outputs: Bindables = {}
        if self._partition.cross is None:
            inputs["last_index"] = np.arange(tokens, dtype=np.int64)[None]
        else:
            cross, outputs = self._partition.cross.bound(1)
            inputs |= cross
        return _Run(ids, positions, last, total, next_ids, self._partition.bind(0, next_ids, inputs, logits, **outputs))


def open_verifier(spec: EngineSpec, partition: DecoderPartition, reset: Callable[[int], None]) -> OrtVerifier | None:
    """One for a partition, where its runs have the bits of steps. `reset(1)` empties row 0."""
    verifier = OrtVerifier(partition)
    return verifier if partition.takes_several and verifies(spec, partition, verifier, reset) else None


@dataclass(frozen=True)
class _Run:
    """What is bound: the tokens and their positions [1, tokens], the row's last position and its length then."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    last: NDArray[np.int32]
    total: NDArray[np.int32]
    next_ids: NDArray[np.int64]
    binding: Binding
