"""The picker: passes the outputs of a run to the searches, which choose the next tokens.

The picker gathers the rows of all searches, and computes log-softmax and top-k in one run each. A search that fails
does not affect the others. Log-probabilities are computed only for the rows of searches that want them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError, StepFailed
from .jobs import Sequence as Searched
from .matcher import Floats
from .partition import Outputs
from .plan import Picks
from .request import Step, Top
from .sampling import SingleSearch
from .search import WHOLE_ROW, Search, log_probs_at
from .sessions import Arrays, Binding, Reserved, SessionSettings, open_session
from .spec import EngineSpec

Ids = NDArray[np.int64]


class Picker:
    """Picks the next tokens from the outputs of runs of at most `slots` rows."""

    def __init__(self, spec: EngineSpec, slots: int, settings: SessionSettings) -> None:
        settings = replace(settings, provider="CPU")  # the logits are on the host by now
        self._log_softmax = open_session(spec.files.log_softmax, settings)
        self._top_k = open_session(spec.files.top_k, settings)
        self._vocabulary = spec.vocab_size
        # Copies of logits that searches may edit. The first rows are log-softmax values, for searches that use these.
        self._scores: Floats = Reserved((slots, spec.vocab_size), np.float32).array
        # Contiguous copies of logits, as inputs of one run of a graph.
        self._logits: Floats = Reserved((slots, spec.vocab_size), np.float32).array

    def close(self) -> None:
        """Release the sessions and the copies of logits, each of rows x vocabulary floats."""
        del self._log_softmax, self._top_k, self._scores, self._logits

    def pick(self, outputs: Outputs, picks: Picks, draft: Sequence[int] = ()) -> list[Step]:
        """Return a step for each of `picks`, in order: what its search chooses from its rows of `outputs`, or an error.

        A run with a `draft` has one pick, whose search chooses again as long as its choices are the draft's tokens.
        """
        steps = self._pick(outputs, picks)
        return [self._follow(outputs, picks, draft, *steps)] if draft else steps

    def _follow(self, outputs: Outputs, picks: Picks, draft: Sequence[int], step: Step) -> Step:
        """Choose again while the choices are the draft's tokens, unless they need scores that the run lacks."""
        ((sequence, (row,)),) = picks.items()
        emitted = step.emitted
        for accepted, token in enumerate(draft):
            lacks_scores = outputs.logits is None and sequence.wants_logits
            if step.error or step.completions or lacks_scores or sequence.search.next_inputs()[0] != token:
                return replace(step, emitted=emitted, accepted=accepted)
            (step,) = self._pick(outputs, {sequence: (row + accepted + 1,)})
            emitted += step.emitted
        return replace(step, emitted=emitted, accepted=len(draft))

    def _pick(self, outputs: Outputs, picks: Picks) -> list[Step]:
        models = _ModelScores(outputs, outputs.next_ids[:, 0].tolist(), self._most_probable(outputs, picks))
        steps = {sequence: _without_scores(models, sequence, rows) for sequence, rows in picks.items()}
        scored = {sequence: rows for sequence, rows in picks.items() if steps[sequence] is None}
        steps |= self._choose(models, scored) if scored else {}
        return [step for step in steps.values() if step is not None]

    def _most_probable(self, outputs: Outputs, picks: Picks) -> dict[Searched, Ids]:
        """Return the ids [1, top_count] of the most probable tokens by sequence, for the sequences that want them.

        Each of these has one row.
        """
        wanting = [sequence for sequence in picks if sequence.search.top_count]
        if not wanting:
            return {}
        assert outputs.logits is not None
        logits = self._logits[: len(wanting)]
        _copy_rows(outputs.logits, [picks[sequence][0] for sequence in wanting], logits)
        _, ids = self._top(logits, max(sequence.search.top_count for sequence in wanting))
        return {each: row[None, : each.search.top_count] for each, row in zip(wanting, ids, strict=True)}

    def _choose(self, models: _ModelScores, picks: Picks) -> dict[Searched, Step]:
        # Rows for the log-softmax come first, rows without top-k come last.
        picks = dict(sorted(picks.items(), key=lambda pick: _place(pick[0].search)))
        ends = np.cumsum([len(rows) for rows in picks.values()]).tolist()
        spans = [slice(end - len(rows), end) for rows, end in zip(picks.values(), ends, strict=True)]
        self._gather(models.outputs, picks)
        errors = [_edit(sequence.search, self._scores[span]) for sequence, span in zip(picks, spans, strict=True)]
        best = {sequence: rows for sequence, rows in picks.items() if sequence.search.candidates != WHOLE_ROW}
        values, ids = self._best(best)
        steps: dict[Searched, Step] = {}
        for (sequence, rows), span, error in zip(picks.items(), spans, errors, strict=True):
            if error is not None:
                steps[sequence] = Step(error=error)
            elif sequence in best:
                steps[sequence] = _choose(models, sequence, rows, values[span], ids[span])
            else:
                steps[sequence] = _choose(models, sequence, rows, self._scores[span], None)
        return steps

    def _gather(self, outputs: Outputs, picks: Picks) -> None:
        """Copy the logits of all picks' rows to the scores, or their log-softmax if the search uses that."""
        assert outputs.logits is not None
        soft = [row for sequence, rows in picks.items() if sequence.search.uses_log_probs for row in rows]
        raw = [row for sequence, rows in picks.items() if not sequence.search.uses_log_probs for row in rows]
        if soft:
            logits, scores = self._logits[: len(soft)], self._scores[: len(soft)]
            _copy_rows(outputs.logits, soft, logits)
            Binding(self._log_softmax, {"scores": logits}, {"log_probs": scores}).run()
        if raw:
            _copy_rows(outputs.logits, raw, self._scores[len(soft) : len(soft) + len(raw)])

    def _best(self, picks: Picks) -> tuple[Floats, Ids]:
        """Return the k best values and ids [rows, k] of the scores' first rows, which belong to `picks`.

        k is the largest number of candidates that any of the searches needs.
        """
        count = sum(map(len, picks.values()))
        return self._top(self._scores[:count], max((sequence.search.candidates for sequence in picks), default=0))

    def _top(self, scores: Floats, count: int) -> tuple[Floats, Ids]:
        """Return the `count` best values and ids of each row of `scores`, or all if there are fewer, best first."""
        shape = len(scores), min(count, self._vocabulary)
        values, ids = np.empty(shape, np.float32), np.empty(shape, np.int64)
        if len(scores):
            inputs: Arrays = {"scores": scores, "k": np.array(shape[1:], np.int64)}
            Binding(self._top_k, inputs, {"values": values, "ids": ids}).run()
        return values, ids


@dataclass(frozen=True)
class _ModelScores:
    """The outputs of a run, and the `best` token of each row.

    `most_probable` has the ids [1, n] of a sequence's best tokens, if the sequence wants them.
    """

    outputs: Outputs
    best: Sequence[int]
    most_probable: Mapping[Searched, Ids]

    def log_probs(self, sequence: Searched, rows: Sequence[int], ids: Ids | None) -> tuple[Floats, Top]:
        """Return the log-softmax of `rows` at `ids` [rows, k] (None: at every id), and the most probable tokens."""
        assert self.outputs.logits is not None
        logits = np.stack([self.outputs.logits[row] for row in rows])
        top = self.most_probable.get(sequence)
        if top is None:
            return log_probs_at(logits, ids), ()
        if ids is None:
            found = log_probs_at(logits, None)
            return found, _pairs(top, np.take_along_axis(found, top, axis=1))
        found = log_probs_at(logits, np.concatenate([ids, top], axis=1))
        own = ids.shape[1]
        return found[:, :own], _pairs(top, found[:, own:])


def _pairs(ids: Ids, log_probs: Floats) -> Top:
    """Return the ids and log-probabilities [1, n] of one row as pairs."""
    return tuple(zip(ids[0].tolist(), log_probs[0].tolist(), strict=True))


def _copy_rows(logits: Floats, rows: Sequence[int], target: Floats) -> None:
    # Logits may be part of wider rows: indexing with a list would make a copy of all of them first.
    for at, row in enumerate(rows):
        target[at] = logits[row]


def _place(search: Search) -> tuple[bool, bool]:
    return not search.uses_log_probs, search.candidates == WHOLE_ROW


def _edit(search: Search, scores: Floats) -> EngineError | None:
    try:
        search.edit(scores)
    except BaseException as error:  # only this search fails; a panic of a library in Rust is no Exception
        return _failure(error)
    return None


def _without_scores(models: _ModelScores, sequence: Searched, rows: Sequence[int]) -> Step | None:
    """Return the step of a search that needs no edited scores; None if it needs them.

    The search takes each row's argmax, a forced token, or a token that structured output allows.
    """
    search, logits = sequence.search, models.outputs.logits
    argmax = models.best[rows[0]] if len(rows) == 1 else None
    token: int | None = argmax if search.forced is None else search.forced
    try:
        if search.candidates != 0:
            if argmax is None or logits is None:
                return None
            token = search.allowed_token(argmax, logits[rows[0]])
        if token is None:
            return None
        if isinstance(search, SingleSearch) and not search.wants_log_probs:
            step = search.take(token)
        else:
            step = _choose(models, sequence, rows, None, np.full((len(rows), 1), token, np.int64))
    except BaseException as error:  # only this search fails; a panic of a library in Rust is no Exception
        return Step(error=_failure(error))
    step.argmax = argmax
    return step


def _choose(
    models: _ModelScores, sequence: Searched, rows: Sequence[int], values: Floats | None, ids: Ids | None
) -> Step:
    search = sequence.search
    try:
        if not search.wants_log_probs:
            return search.choose(values, ids)
        log_probs, top = models.log_probs(sequence, rows, ids)
        return search.choose(values, ids, log_probs, top)
    except BaseException as error:  # only this search fails; a panic of a library in Rust is no Exception
        return Step(error=_failure(error))


def _failure(error: BaseException) -> EngineError:
    if isinstance(error, EngineError):
        return error
    return StepFailed(f"choosing the next token failed ({type(error).__name__}: {error})", "Report it with the request")
