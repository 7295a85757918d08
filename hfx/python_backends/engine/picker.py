"""From the outputs of a run to what each search chose.

Rows are gathered, log-softmaxed and their best taken in one run for all searches; a search that fails fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .errors import EngineError, StepFailed
from .memory import Arrays, Binding, Reserved
from .plan import Outcome, Pick
from .runner import Outputs
from .search import WHOLE_ROW, Floats, log_probs_at
from .sessions import SessionSettings, open_session
from .spec import EngineSpec

Ids = NDArray[np.int64]


class Picker:
    """For runs of at most `slots` rows."""

    def __init__(self, spec: EngineSpec, slots: int, settings: SessionSettings) -> None:
        settings = replace(settings, provider="CPU")  # the logits are on the host by now
        self._log_softmax = open_session(spec.files.log_softmax, settings)
        self._top_k = open_session(spec.files.top_k, settings)
        self._vocabulary = spec.vocab_size
        # Copies of logits that searches may edit; the first rows are their log-softmax where beams want that.
        self._scores: Floats = Reserved((slots, spec.vocab_size), np.float32).array
        self._logits: Floats = Reserved((slots, spec.vocab_size), np.float32).array

    def pick(self, outputs: Outputs, picks: Sequence[Pick]) -> list[Outcome]:
        """What each pick's search chooses from its rows of `outputs`, in order. A search that fails gives its error."""
        scored = [pick for pick in picks if pick.sequence.search.candidates != 0]
        if not scored:
            return [_without_scores(outputs, pick) for pick in picks]
        results = self._choose(outputs, scored)
        return [
            results[pick.sequence] if pick.sequence in results else _without_scores(outputs, pick) for pick in picks
        ]

    def _choose(self, outputs: Outputs, picks: list[Pick]) -> dict[object, Outcome]:
        # Rows that are log-softmaxed come first, rows of which no best are taken last.
        picks.sort(key=_place)
        ends = np.cumsum([len(pick.rows) for pick in picks]).tolist()
        spans = [slice(end - len(pick.rows), end) for pick, end in zip(picks, ends, strict=True)]
        self._gather(outputs, picks)
        errors = [_edit(pick, self._scores[span]) for pick, span in zip(picks, spans, strict=True)]
        best = [pick for pick in picks if pick.sequence.search.candidates != WHOLE_ROW]
        values, ids = self._best(best)
        results: dict[object, Outcome] = {}
        for at, (pick, span) in enumerate(zip(picks, spans, strict=True)):
            error = errors[at]
            if error is not None:
                results[pick.sequence] = Outcome(pick.sequence, error)
            elif at < len(best):
                results[pick.sequence] = _choose(outputs, pick, values[span], ids[span])
            else:
                results[pick.sequence] = _choose(outputs, pick, self._scores[span], None)
        return results

    def _gather(self, outputs: Outputs, picks: Sequence[Pick]) -> None:
        """The logits of all picks' rows to the scores, log-softmaxed where wanted."""
        assert outputs.logits is not None
        soft = [row for pick in picks if pick.sequence.search.uses_log_probs for row in pick.rows]
        raw = [row for pick in picks if not pick.sequence.search.uses_log_probs for row in pick.rows]
        if soft:
            logits, scores = self._logits[: len(soft)], self._scores[: len(soft)]
            _copy_rows(outputs.logits, soft, logits)
            Binding(self._log_softmax, {"scores": logits}, {"log_probs": scores}).run()
        if raw:
            _copy_rows(outputs.logits, raw, self._scores[len(soft) : len(soft) + len(raw)])

    def _best(self, picks: Sequence[Pick]) -> tuple[Floats, Ids]:
        """(values, ids) [rows, k] of the first rows of the scores, k being the largest that a pick wants."""
        rows = sum(len(pick.rows) for pick in picks)
        k = min(max((pick.sequence.search.candidates for pick in picks), default=0), self._vocabulary)
        values, ids = np.empty((rows, k), np.float32), np.empty((rows, k), np.int64)
        if rows:
            inputs: Arrays = {"scores": self._scores[:rows], "k": np.array([k], np.int64)}
            Binding(self._top_k, inputs, {"values": values, "ids": ids}).run()
        return values, ids


def _copy_rows(logits: Floats, rows: Sequence[int], target: Floats) -> None:
    # Logits may be part of wider rows: indexing with a list would make a copy of all of them first.
    for at, row in enumerate(rows):
        target[at] = logits[row]


def _place(pick: Pick) -> tuple[bool, bool]:
    search = pick.sequence.search
    return not search.uses_log_probs, search.candidates == WHOLE_ROW


def _edit(pick: Pick, scores: Floats) -> EngineError | None:
    try:
        pick.sequence.search.edit(scores)
    except Exception as error:  # one search's failure is its own
        return _failure(error)
    return None


def _without_scores(outputs: Outputs, pick: Pick) -> Outcome:
    """The argmax of each row, or the token that is forced."""
    ids = outputs.next_ids[list(pick.rows)]
    argmax = int(ids[0, 0]) if len(pick.rows) == 1 else None
    forced = pick.sequence.search.forced
    outcome = _choose(outputs, pick, None, ids if forced is None else np.full_like(ids, forced))
    return Outcome(outcome.sequence, outcome.result, argmax)


def _choose(outputs: Outputs, pick: Pick, values: Floats | None, ids: Ids | None) -> Outcome:
    search = pick.sequence.search
    try:
        log_probs = None
        if search.wants_log_probs:
            assert outputs.logits is not None
            log_probs = log_probs_at(outputs.logits[list(pick.rows)], ids)
        return Outcome(pick.sequence, search.choose(values, ids, log_probs))
    except Exception as error:  # one search's failure is its own
        return Outcome(pick.sequence, _failure(error))


def _failure(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    return StepFailed(f"choosing the next token failed ({type(error).__name__}: {error})", "Report it with the request")
