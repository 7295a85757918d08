"""The lane of an encoder-decoder for one number of beams: what its steps read and change in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from .kv_cache_grown import GrownRows
from .openvino_model import InferRequest, LogitsReader
from .paged_rows import PagedRows, PagedSources
from .runner import Outputs, Pairs

OwnRows = Union[PagedRows, GrownRows]  # K/V of the rows' own tokens


class PagedLane:
    """`units` units of `width` rows each, for which `own` and `sources` have memory; a step runs `least` at least."""

    def __init__(
        self,
        width: int,
        units: int,
        request: InferRequest,
        own: OwnRows,
        sources: PagedSources,
        logits: LogitsReader,
        least: int,
    ) -> None:
        self.width = width
        self.ids = np.zeros(units * width, np.int64)
        self.positions = np.zeros(units * width, np.int64)
        self.own = own
        self.sources = sources
        self._request = request
        self._logits = logits
        self._least = least
        self._bound = 0

    def start(self, unit: int, values: Sequence[NDArray[Any]]) -> None:
        """Empty rows, and the cross K/V of one source."""
        self.sources.put(unit, values)
        self.clear(unit)

    def share(self, source: int, target: int) -> None:
        """Empty rows, and the cross K/V of unit `source`."""
        self.sources.share(source, target)
        self.clear(target)

    def move(self, source: int, target: int) -> None:
        """All of unit `source` to unit `target`."""
        self.sources.move(source, target)
        for beam in range(self.width):
            one, other = source * self.width + beam, target * self.width + beam
            self.own.move(one, other)
            for array in (self.ids, self.positions):
                array[other] = array[one]

    def feed(self, pairs: Pairs) -> None:
        """(row, token): set next inputs."""
        rows, tokens = zip(*pairs)  # noqa: B905 - pairs
        self.ids[list(rows)] = tokens

    def step(self, units: int, logits: bool) -> Outputs:
        """Run one token in all rows of the first `units` units."""
        run = max(units, self._least)
        for unit in range(units, run):
            self.share(0, unit)
        if run != self._bound:
            rows = run * self.width
            self._request.bind({"input_ids": self.ids[:rows], "position_ids": self.positions[:rows]})
            self.own.bind(rows)
            self.sources.bind(run)
            self._bound = run
        self.own.prepare(run * self.width)
        self.sources.prepare(run)
        self._request.run()
        rows = units * self.width
        self.ids[:rows] = self._request.output("next_ids")[:rows, 0]
        self.own.advance(rows)
        self.positions[:rows] += 1
        return Outputs(self.ids[:, None], self._logits.read(self._request) if logits else None).first(rows)

    def let_go(self, first: int) -> None:
        """Units from `first` on are not in use."""
        self.own.let_go(first * self.width)
        self.sources.let_go(first)

    def clear(self, unit: int) -> None:
        """Empty rows, with the source that the unit has."""
        for row in range(unit * self.width, (unit + 1) * self.width):
            self.own.clear(row)
            self.positions[row] = 0
