"""The picker: passes the outputs of a run to the searches, which choose the next tokens.

Scores are edited and ranked on the host, or on the device that has the logits, for searches that need no more than the
best scores (`scores.py`). A search that fails does not affect the others. Log-probabilities are computed only for the
rows of searches that want them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import EngineError
from .jobs import Job
from .jobs import Sequence as Searched
from .matcher import Floats
from .partition import Outputs
from .plan import Picks, Plan, Run
from .request import Event, Step, Top
from .sampling import SingleSearch
from .scores import Best, Ids, Scores, failure
from .search import log_probs_at


class Picker:
    """Picks the next tokens from the outputs of runs. `scores` edits and ranks their logits."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores

    def close(self) -> None:
        """Release the sessions and the copies of logits, each of rows x vocabulary floats."""
        del self._scores

    def pick(self, outputs: Outputs, picks: Picks, draft: Sequence[int] = ()) -> list[Step]:
        """Return a step for each of `picks`, in order: what its search chooses from its rows of `outputs`, or an error.

        A run with a `draft` has one pick, whose search chooses again as long as its choices are the draft's tokens.
        """
        steps = self._pick(outputs, picks)
        return [self._follow(outputs, picks, draft, *steps)] if draft else steps

    def of_prompts(self, outputs: Outputs, plan: Plan) -> dict[Job, Event]:
        """Return the tokens of a prompt whose log-probabilities a plan's `outputs` have; none if none are wanted."""
        if not isinstance(plan, Run) or not plan.spans or not plan.spans[0].scored:
            return {}
        (span,), (job,) = plan.spans, plan.prefill_jobs
        prompt, known = job.request.prompt, job.prefilled  # the log-probabilities up to the token `known` are known
        ids = prompt[known + 1 : span.end + 1]
        count = job.request.settings.prompt_log_probs or 0
        log_probs, columns = self._scores.of_prompt(outputs, known - span.start, ids, count)
        top = map(_pairs, columns[:, None, 1:], log_probs[:, None, 1:])
        first = 0 if known else 1
        values = (*(0.0,) * first, *log_probs[:, 0].tolist())
        tops = (*((),) * first, *top)
        return {job: Event(0, (*prompt[:first], *ids), log_probs=values, top=tops, of_prompt=True)}

    def _follow(self, outputs: Outputs, picks: Picks, draft: Sequence[int], step: Step) -> Step:
        """Choose again while the choices are the draft's tokens, unless they need scores that the run lacks."""
        ((sequence, (row,)),) = picks.items()
        emitted = step.emitted
        for accepted, token in enumerate(draft):
            lacks_scores = sequence.wants_logits and outputs.memory is None
            if step.error or step.completions or lacks_scores or sequence.search.next_inputs()[0] != token:
                return replace(step, emitted=emitted, accepted=accepted)
            (step,) = self._pick(outputs, {sequence: (row + accepted + 1,)})
            emitted += step.emitted
        return replace(step, emitted=emitted, accepted=len(draft))

    def _pick(self, outputs: Outputs, picks: Picks) -> list[Step]:
        models = _ModelScores(outputs, outputs.next_ids[:, 0].tolist(), self._most_probable(outputs, picks))
        steps = {sequence: _without_scores(models, sequence, rows) for sequence, rows in picks.items()}
        scored = {sequence: rows for sequence, rows in picks.items() if steps[sequence] is None}
        best = self._scores.best(outputs, scored) if scored else {}
        steps |= {sequence: _choose(models, sequence, scored[sequence], found) for sequence, found in best.items()}
        return [step for step in steps.values() if step is not None]

    def _most_probable(self, outputs: Outputs, picks: Picks) -> dict[Searched, Ids]:
        """Return the ids [1, top_count] of the most probable tokens by sequence, for the sequences that want them.

        Each of these has one row.
        """
        wanting = [sequence for sequence in picks if sequence.search.top_count]
        if not wanting:
            return {}
        rows, count = [picks[sequence][0] for sequence in wanting], max(each.search.top_count for each in wanting)
        ids = self._scores.most_probable(outputs, rows, count)
        return {each: row[None, : each.search.top_count] for each, row in zip(wanting, ids, strict=True)}


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
        logits = np.stack([self.outputs.host_logits[row] for row in rows])
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


def _without_scores(models: _ModelScores, sequence: Searched, rows: Sequence[int]) -> Step | None:
    """Return the step of a search that needs no edited scores; None if it needs them.

    The search takes each row's argmax, a forced token, or a token that structured output allows.
    """
    search = sequence.search
    argmax = models.best[rows[0]] if len(rows) == 1 else None
    token: int | None = argmax if search.forced is None else search.forced
    try:
        if search.candidates != 0:
            if argmax is None or search.edits_by_id:
                return None
            token = search.allowed_token(argmax, models.outputs.host_logits[rows[0]])
        if token is None:
            return None
        if isinstance(search, SingleSearch) and not search.wants_log_probs:
            step = search.take(token)
        else:
            step = _choose(models, sequence, rows, (None, np.full((len(rows), 1), token, np.int64)))
    except BaseException as error:  # only this search fails; a panic of a library in Rust is no Exception
        return Step(error=failure(error))
    step.argmax = argmax
    return step


def _choose(models: _ModelScores, sequence: Searched, rows: Sequence[int], best: Best | tuple[None, Ids]) -> Step:
    """Return the search's step for the `best` of its edited scores, or for its `ids` without values."""
    if isinstance(best, EngineError):
        return Step(error=best)
    search, (values, ids) = sequence.search, best
    try:
        if not search.wants_log_probs:
            return search.choose(values, ids)
        log_probs, top = models.log_probs(sequence, rows, ids)
        return search.choose(values, ids, log_probs, top)
    except BaseException as error:  # only this search fails; a panic of a library in Rust is no Exception
        return Step(error=failure(error))
