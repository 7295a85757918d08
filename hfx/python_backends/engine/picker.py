"""From the outputs of a run to what each search chose.

Rows are gathered, log-softmaxed and their best taken in one run for all searches; a search that fails fails alone.
Log-probabilities are computed of the rows whose searches want them, and of no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError, StepFailed
from .memory import Reserved
from .partition import Outputs
from .plan import Outcome, Pick
from .request import Event, Top
from .search import WHOLE_ROW, Floats, Step, log_probs_at
from .sessions import Arrays, Binding, SessionSettings, open_session
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
        # Contiguous copies, for a run at a time.
        self._logits: Floats = Reserved((slots, spec.vocab_size), np.float32).array

    def pick(self, outputs: Outputs, picks: Sequence[Pick]) -> list[Outcome]:
        """What each pick's search chooses from its rows of `outputs`, in order. A search that fails gives its error."""
        outcomes = self._pick(outputs, picks)
        return [
            self._follow(outputs, pick, outcome) if pick.draft else outcome
            for pick, outcome in zip(picks, outcomes, strict=True)
        ]

    def _follow(self, outputs: Outputs, pick: Pick, outcome: Outcome) -> Outcome:
        """Choose on while the choices are those of the pick's draft, and need no scores that the run has not."""
        earlier: tuple[Event, ...] = ()
        sequence = pick.sequence
        for accepted, token in enumerate(pick.draft):
            step = outcome.result
            lacks_scores = outputs.logits is None and sequence.wants_logits
            if not isinstance(step, Step) or step.completions or lacks_scores or sequence.search.feed()[0] != token:
                return replace(outcome, accepted=accepted, earlier=earlier)
            earlier += step.emitted
            (outcome,) = self._pick(outputs, [replace(pick, rows=(pick.rows[0] + accepted + 1,))])
        return replace(outcome, accepted=len(pick.draft), earlier=earlier)

    def _pick(self, outputs: Outputs, picks: Sequence[Pick]) -> list[Outcome]:
        models = _ModelScores(outputs, self._most_probable(outputs, picks))
        scored = [pick for pick in picks if pick.sequence.search.candidates != 0]
        results = self._choose(models, scored) if scored else {}
        return [results[pick.sequence] if pick.sequence in results else _without_scores(models, pick) for pick in picks]

    def _most_probable(self, outputs: Outputs, picks: Sequence[Pick]) -> dict[object, Ids]:
        """Ids [1, top_count] by sequence, of those that want them, which have one row each."""
        wanting = [pick for pick in picks if pick.sequence.search.top_count]
        if not wanting:
            return {}
        assert outputs.logits is not None
        logits = self._logits[: len(wanting)]
        _copy_rows(outputs.logits, [pick.rows[0] for pick in wanting], logits)
        _, ids = self._top(logits, max(pick.sequence.search.top_count for pick in wanting))
        tops = zip(wanting, ids, strict=True)
        return {pick.sequence: row[None, : pick.sequence.search.top_count] for pick, row in tops}

    def _choose(self, models: _ModelScores, picks: list[Pick]) -> dict[object, Outcome]:
        # Rows that are log-softmaxed come first, rows of which no best are taken last.
        picks.sort(key=_place)
        ends = np.cumsum([len(pick.rows) for pick in picks]).tolist()
        spans = [slice(end - len(pick.rows), end) for pick, end in zip(picks, ends, strict=True)]
        self._gather(models.outputs, picks)
        errors = [_edit(pick, self._scores[span]) for pick, span in zip(picks, spans, strict=True)]
        best = [pick for pick in picks if pick.sequence.search.candidates != WHOLE_ROW]
        values, ids = self._best(best)
        results: dict[object, Outcome] = {}
        for at, (pick, span) in enumerate(zip(picks, spans, strict=True)):
            error = errors[at]
            if error is not None:
                results[pick.sequence] = Outcome(pick.sequence, error)
            elif at < len(best):
                results[pick.sequence] = _choose(models, pick, values[span], ids[span])
            else:
                results[pick.sequence] = _choose(models, pick, self._scores[span], None)
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
        return self._top(self._scores[:rows], max((pick.sequence.search.candidates for pick in picks), default=0))

    def _top(self, scores: Floats, count: int) -> tuple[Floats, Ids]:
        """The best `count` of each row of `scores`, or all where there are fewer: values and ids, best first."""
        shape = len(scores), min(count, self._vocabulary)
        values, ids = np.empty(shape, np.float32), np.empty(shape, np.int64)
        if len(scores):
            inputs: Arrays = {"scores": scores, "k": np.array(shape[1:], np.int64)}
            Binding(self._top_k, inputs, {"values": values, "ids": ids}).run()
        return values, ids


@dataclass(frozen=True)
class _ModelScores:
    """The outputs of a run; `most_probable` are ids [1, n] of a sequence's best tokens, where it wants them."""

    outputs: Outputs
    most_probable: Mapping[object, Ids]

    def log_probs(self, pick: Pick, ids: Ids | None) -> tuple[Floats, Top]:
        """log-softmax of a pick's logits at `ids` [rows, k] (None: everywhere), and of its most probable tokens."""
        assert self.outputs.logits is not None
        logits = np.stack([self.outputs.logits[row] for row in pick.rows])
        top = self.most_probable.get(pick.sequence)
        if top is None:
            return log_probs_at(logits, ids), ()
        if ids is None:
            found = log_probs_at(logits, None)
            return found, _pairs(top, np.take_along_axis(found, top, axis=1))
        found = log_probs_at(logits, np.concatenate([ids, top], axis=1))
        own = ids.shape[1]
        return found[:, :own], _pairs(top, found[:, own:])


def _pairs(ids: Ids, log_probs: Floats) -> Top:
    """The tokens of one row [1, n]."""
    return tuple(zip(ids[0].tolist(), log_probs[0].tolist(), strict=True))


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


def _without_scores(models: _ModelScores, pick: Pick) -> Outcome:
    """The argmax of each row, or the token that is forced."""
    ids = models.outputs.next_ids[list(pick.rows)]
    argmax = int(ids[0, 0]) if len(pick.rows) == 1 else None
    forced = pick.sequence.search.forced
    outcome = _choose(models, pick, None, ids if forced is None else np.full_like(ids, forced))
    return Outcome(outcome.sequence, outcome.result, argmax)


def _choose(models: _ModelScores, pick: Pick, values: Floats | None, ids: Ids | None) -> Outcome:
    search = pick.sequence.search
    try:
        if not search.wants_log_probs:
            return Outcome(pick.sequence, search.choose(values, ids))
        log_probs, top = models.log_probs(pick, ids)
        return Outcome(pick.sequence, search.choose(values, ids, log_probs, top))
    except Exception as error:  # one search's failure is its own
        return Outcome(pick.sequence, _failure(error))


def _failure(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    return StepFailed(f"choosing the next token failed ({type(error).__name__}: {error})", "Report it with the request")
