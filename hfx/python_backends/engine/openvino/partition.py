"""The partition of a decoder in OpenVINO for one number of beams: what its steps read and change in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..probes import StepSize
from ..runner import Outputs, Pairs, Verifier
from .kv_cache import OwnRows, PagedSources
from .model import InferRequest, LogitsReader


class PagedPartition:
    """`groups` groups of `width` rows each, for which `own`, and with an encoder `sources`, have memory.

    A step has the groups of `size` (see probes).
    """

    verifier: Verifier | None = None

    def __init__(
        self,
        width: int,
        groups: int,
        request: InferRequest,
        own: OwnRows,
        sources: PagedSources | None,
        logits: LogitsReader,
        size: StepSize,
    ) -> None:
        rows = groups * width
        self.width = width
        self.ids = np.zeros(rows, np.int64)
        self.positions = np.zeros(rows, np.int64)
        self.own = own
        self.sources = sources
        self.size = size
        self._last = np.arange(rows, dtype=np.int64)
        self._request = request
        self._logits = logits
        self._bound = 0

    def put_source(self, group: int, values: Sequence[NDArray[Any]]) -> None:
        """Empty rows, and the cross K/V of one source."""
        assert self.sources is not None
        self.sources.put(group, values)
        self.clear(group)

    def share(self, source: int, target: int) -> None:
        """Empty rows, and the cross K/V of group `source`."""
        if self.sources is not None:
            self.sources.share(source, target)
        self.clear(target)

    def clear(self, group: int) -> None:
        """Empty rows, with the source that the group has."""
        for row in range(group * self.width, (group + 1) * self.width):
            self.own.clear(row)
            self.positions[row] = 0

    def put_past(self, row: int, past: NDArray[Any]) -> None:
        """As numbered in PagedCache, whose numbers must not be packed."""
        self.own.put(row, list(past.transpose(0, 2, 1, 3)))
        self.positions[row] = past.shape[1]

    def move(self, source: int, target: int) -> None:
        """Own and cross K/V, positions and next inputs."""
        if self.sources is not None:
            self.sources.move(source, target)
        for beam in range(self.width):
            one, other = source * self.width + beam, target * self.width + beam
            self.own.move(one, other)
            for array in (self.ids, self.positions):
                array[other] = array[one]

    def reorder_cache(self, pairs: Pairs) -> None:
        """The cross K/V are the group's."""
        self.own.reorder(pairs)

    def set_next_tokens(self, pairs: Pairs) -> None:
        """Overwrite the argmax of the last run."""
        rows, tokens = zip(*pairs)  # noqa: B905 - pairs
        self.ids[list(rows)] = tokens

    def step(self, groups: int, logits: bool) -> Outputs:
        """One run of a token for each row."""
        rows, run = groups * self.width, self.size.of(groups)
        for group in range(groups, run):
            self.share(0, group)
        if run != self._bound:
            self._bind(run)
        self.own.prepare(run * self.width)
        if self.sources is not None:
            self.sources.prepare(run)
        self._request.run()
        self.advance(rows, self._request.output("next_ids"))
        return Outputs(self.ids[:, None], self._logits.read(self._request) if logits else None).first(rows)

    def advance(self, rows: int, next_ids: NDArray[np.int64]) -> None:
        """The first `rows` rows have taken a step, which gave `next_ids` [rows or more, 1]."""
        self.ids[:rows] = next_ids[:rows, 0]
        self.own.advance(rows)
        self.positions[:rows] += 1

    def release(self, first: int) -> None:
        """Groups from `first` on are not in use."""
        self.own.release(first * self.width)
        if self.sources is not None:
            self.sources.release(first)

    def _bind(self, groups: int) -> None:
        rows = groups * self.width
        inputs = {"input_ids": self.ids[:rows], "position_ids": self.positions[:rows]}
        if self.sources is None:
            inputs["last"] = self._last[:rows]
        else:
            self.sources.bind(groups)
        self._request.bind(inputs)
        self.own.bind(rows)
        self._bound = groups
