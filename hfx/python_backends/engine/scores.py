"""The edited scores of searches and the best of them, on the host or on the device that has the logits.

Both compute log-softmax and top-k for the rows of all searches together. A search whose edits fail does not affect the
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError, StepFailed
from .captures import Net
from .device_memory import Device, DeviceArray
from .jobs import Sequence as Searched
from .matcher import Floats
from .partition import Outputs
from .plan import padded
from .processors import BANNED
from .search import WHOLE_ROW, Search, log_probs_at
from .sessions import Arrays, Bindables, Binding, Reserved, SessionSettings, open_session
from .spec import EngineSpec
from .staging import MOST_CAPTURED

# Runs on a GPU have few shapes: the number of rows is padded (plan.padded), and the numbers of edits and candidates are
# powers of two.
FEWEST = 32  # edits
MOST_BOUND = 256  # shapes whose memory stays bound; most of them have less than 100 KB
FEW = 16  # rows whose exponentials are in memory together
SPARE = 4  # best scores beyond those that searches need, because CUDA's TopK returns equal scores in any order

Ids = NDArray[np.int64]
Rows = Mapping[Searched, Sequence[int]]
# The best values and ids [rows, k] of a search's rows, best first and the lowest id first among equal values. k is at
# least the number of candidates that the search needs. The ids are None if the values are whole rows. The error is that
# of the search's edits.
Best = Union[tuple[Floats, Union[Ids, None]], EngineError]


class HostScores:
    """Copies logits on the host, at most `slots` rows of them, and edits and ranks the copies."""

    def __init__(self, spec: EngineSpec, slots: int, settings: SessionSettings) -> None:
        self._log_softmax = open_session(spec.files.log_softmax, settings)
        self._top_k = open_session(spec.files.top_k, settings)
        self._vocabulary = spec.vocab_size
        # Copies of logits that searches may edit. The first rows are log-softmax values, for searches that use these.
        self._scores: Floats = Reserved((slots, spec.vocab_size), np.float32).array
        # Contiguous copies of logits, as inputs of one run of a graph.
        self._logits: Floats = Reserved((slots, spec.vocab_size), np.float32).array

    def best(self, outputs: Outputs, picks: Rows) -> dict[Searched, Best]:
        """Return the best of each search's scores, or its whole rows, from its rows of `outputs`.

        The result is valid until the next call.
        """
        # Rows for the log-softmax come first, rows without top-k come last.
        picks = {sequence: picks[sequence] for sequence in sorted(picks, key=_order)}
        spans = _spans(picks)
        self._gather(outputs.host_logits, picks)
        errors = {sequence: _edit(sequence.search, self._scores[span]) for sequence, span in spans.items()}
        ranked = {sequence: rows for sequence, rows in picks.items() if sequence.search.candidates != WHOLE_ROW}
        values, ids = self._top(self._scores[: sum(map(len, ranked.values()))], _most(ranked))
        found: dict[Searched, Best] = {}
        for sequence, span in spans.items():
            best = (values[span], ids[span]) if sequence in ranked else (self._scores[span], None)
            found[sequence] = best if (error := errors[sequence]) is None else error
        return found

    def most_probable(self, outputs: Outputs, rows: Sequence[int], count: int) -> Ids:
        """Return the ids of the `count` highest logits in each of `rows`, best first."""
        copies = self._logits[: len(rows)]
        _copy_rows(outputs.host_logits, rows, copies)
        return self._top(copies, count)[1]

    def of_prompt(self, outputs: Outputs, first: int, ids: Sequence[int], count: int) -> tuple[Floats, Ids]:
        """Return the log-probabilities [rows, 1 + count] of `ids` and of the most probable tokens, and all their ids.

        The rows are those of `outputs` from `first` on, one for each of `ids`.
        """
        logits = np.ascontiguousarray(outputs.host_logits[first : first + len(ids)])
        top = self._top(logits, count)[1] if count else np.empty((len(ids), 0), np.int64)
        columns = np.concatenate([np.array(ids, np.int64).reshape(-1, 1), top], axis=1)
        log_probs = np.empty(columns.shape, np.float32)
        for at in range(0, len(ids), FEW):
            some = slice(at, at + FEW)
            log_probs[some] = log_probs_at(logits[some], columns[some])
        return log_probs, columns

    def _gather(self, logits: Floats, picks: Rows) -> None:
        """Copy the logits of all picks' rows to the scores, or their log-softmax if the search uses that."""
        soft = [row for sequence, rows in picks.items() if sequence.search.uses_log_probs for row in rows]
        raw = [row for sequence, rows in picks.items() if not sequence.search.uses_log_probs for row in rows]
        if soft:
            copies, scores = self._logits[: len(soft)], self._scores[: len(soft)]
            _copy_rows(logits, soft, copies)
            Binding(self._log_softmax, {"scores": copies}, {"log_probs": scores}).run()
        if raw:
            _copy_rows(logits, raw, self._scores[len(soft) : len(soft) + len(raw)])

    def _top(self, scores: Floats, count: int) -> tuple[Floats, Ids]:
        """Return the `count` best values and ids of each row of `scores`, or all if there are fewer, best first."""
        shape = len(scores), min(count, self._vocabulary)
        values, ids = np.empty(shape, np.float32), np.empty(shape, np.int64)
        if len(scores):
            inputs: Arrays = {"scores": scores, "k": np.array(shape[1:], np.int64)}
            Binding(self._top_k, inputs, {"values": values, "ids": ids}).run()
        return values, ids


class DeviceScores:
    """Edits and ranks scores on the device that has the logits. Only the best scores are copied to the host.

    Searches that need more are left to the scores on the host.
    """

    def __init__(self, spec: EngineSpec, net: Net, device: Device, on_host: HostScores) -> None:
        self._net, self._device, self._on_host = net, device, on_host
        self._vocabulary = spec.vocab_size
        self._runs: dict[Any, _BoundRun] = {}  # by shapes, the least recent first
        self.most_probable, self.of_prompt = on_host.most_probable, on_host.of_prompt

    @staticmethod
    def takes(search: Search) -> bool:
        """Whether the best scores on the device are all that the search needs in this step."""
        return search.edits_by_id and search.candidates != WHOLE_ROW and not search.wants_log_probs

    def best(self, outputs: Outputs, picks: Rows) -> dict[Searched, Best]:
        """Return the best of each search's scores, or its whole rows (see HostScores)."""
        found: dict[Searched, Best] = {}
        if isinstance(outputs.memory, DeviceArray):  # those of several runs are on the host (Outputs.joined)
            taken = {sequence: rows for sequence, rows in picks.items() if self.takes(sequence.search)}
            found = self._best(outputs.memory, taken)
        rest = {sequence: rows for sequence, rows in picks.items() if sequence not in found}
        return found | self._on_host.best(outputs, rest) if rest else found

    def _best(self, logits: DeviceArray, picks: Rows) -> dict[Searched, Best]:
        """Return the best of each search's scores, from its rows of `logits` [rows, vocabulary].

        A tie at the end of the best scores may leave out lower ids than it takes.
        """
        found: dict[Searched, Best] = {}
        taken: dict[Searched, Sequence[int]] = {}
        edits: list[tuple[Ids, Floats, Ids]] = []
        first = 0
        for sequence, rows in picks.items():
            try:
                edits.append(sequence.search.edits().by_index(first, len(rows), self._vocabulary))
            except BaseException as error:  # only this search fails
                found[sequence] = failure(error)
            else:
                taken[sequence] = rows
                first += len(rows)
        if taken:
            values, ids = self._ranked(logits, taken, *map(list, zip(*edits, strict=True)))
            found |= {sequence: (values[span], ids[span]) for sequence, span in _spans(taken).items()}
        return found

    def _ranked(
        self, logits: DeviceArray, picks: Rows, changed: list[Ids], amounts: list[Floats], banned: list[Ids]
    ) -> tuple[Floats, Ids]:
        """Return the best values and ids [rows, k] of the rows of `picks`, with edits as `Edits.by_index` returns."""
        rows = [row for own in picks.values() for row in own]
        uses = [sequence.search.uses_log_probs for sequence, own in picks.items() for _ in own]
        # A graph's lists can't be empty. A penalty of 1 and a limit of infinity change nothing.
        bans = _edits(banned, np.zeros(1, np.int64))
        limit = BANNED if any(each.size for each in banned) else -BANNED
        lists: dict[str, NDArray[Any]] = {
            "rows": _filled_up(np.array(rows), padded(len(rows), 1)),
            "log_probs": _filled_up(np.array(uses), padded(len(rows), 1))[:, None],
            "changed": _edits(changed, np.zeros(1, np.int64))[None],
            "amounts": _edits(amounts, np.array([[1], [0], [0]], np.float32)),
            "banned": bans[None],
            "limits": np.full((1, bans.size), limit, np.float32),
        }
        k = min(_power(_most(picks) + SPARE), self._vocabulary)
        values, ids = self._bound(logits, lists, k).run(lists)
        order = np.lexsort((ids, -values))[: len(rows)]
        return np.take_along_axis(values[: len(rows)], order, axis=1), np.take_along_axis(
            ids[: len(rows)], order, axis=1
        )

    def _bound(self, logits: DeviceArray, lists: Arrays, k: int) -> _BoundRun:
        """Return the run of these shapes, whose memory stays bound until many other shapes have been run."""
        # Rows that are not listed are never read, so their number may be one of few, whether or not all of them exist.
        logits = replace(logits, shape=(padded(logits.shape[0], 1), self._vocabulary))
        shapes = (logits.address, logits.shape, k, *(each.shape for each in lists.values()))
        found = self._runs.pop(shapes, None)
        if found is None:
            inputs: Bindables = {"scores": logits, "ranks": self._device.allocate((k,), np.int8)}
            found = _BoundRun(self._net, inputs, lists, k, captured=len(self._runs) < MOST_CAPTURED)
        self._runs[shapes] = found  # the most recent is last
        if len(self._runs) > MOST_BOUND:
            del self._runs[next(iter(self._runs))]
        return found


class _BoundRun:
    """A run of the graph for choices whose memory is bound once."""

    def __init__(self, net: Net, inputs: Bindables, lists: Arrays, k: int, captured: bool) -> None:
        self._lists = {name: each.copy() for name, each in lists.items()}
        shape = len(lists["rows"]), k
        self._values, self._ids = np.empty(shape, np.float32), np.empty(shape, np.int64)
        outputs: Arrays = {"values": self._values, "ids": self._ids}
        self._binding = net.bind({**self._lists, **inputs}, outputs, captured)

    def run(self, lists: Arrays) -> tuple[Floats, Ids]:
        """Return the best values and ids [rows, k] for these lists. They are valid until the next run."""
        for name, each in lists.items():
            self._lists[name][...] = each
        self._binding.run()
        return self._values, self._ids


Scores = Union[HostScores, DeviceScores]


def failure(error: BaseException) -> EngineError:
    """Return the error with which a search ends because of `error`."""
    if isinstance(error, EngineError):
        return error
    return StepFailed(f"choosing the next token failed ({type(error).__name__}: {error})", "Report it with the request")


def _most(picks: Rows) -> int:
    """Return the largest number of candidates that any of the searches needs."""
    return max((sequence.search.candidates for sequence in picks), default=0)


def _spans(picks: Rows) -> dict[Searched, slice]:
    """Return the place of each search's rows if all rows are in order."""
    ends = np.cumsum([len(rows) for rows in picks.values()]).tolist()
    return {sequence: slice(end - len(rows), end) for (sequence, rows), end in zip(picks.items(), ends, strict=True)}


def _edits(parts: list[NDArray[Any]], nothing: NDArray[Any]) -> NDArray[Any]:
    """Return `parts` [..., n] joined, or `nothing` [..., 1] if they are empty, filled up to a power of two."""
    joined = np.concatenate(parts, axis=-1)
    joined = joined if joined.size else nothing
    return _filled_up(joined, _power(max(joined.shape[-1], FEWEST)))


def _filled_up(array: NDArray[Any], count: int) -> NDArray[Any]:
    """Return `array` [..., n] with its last entry repeated until there are `count` entries."""
    return np.take(array, np.minimum(np.arange(count), array.shape[-1] - 1), axis=-1)


def _power(count: int) -> int:
    """Return the least power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def _order(sequence: Searched) -> tuple[bool, bool]:
    return not sequence.search.uses_log_probs, sequence.search.candidates == WHOLE_ROW


def _copy_rows(logits: Floats, rows: Sequence[int], target: Floats) -> None:
    # Logits may be part of wider rows: indexing with a list would make a copy of all of them first.
    for at, row in enumerate(rows):
        target[at] = logits[row]


def _edit(search: Search, scores: Floats) -> EngineError | None:
    try:
        search.edit(scores)
    except BaseException as error:  # only this search fails; a panic of a library in Rust is no Exception
        return failure(error)
    return None
