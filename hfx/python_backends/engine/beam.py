"""Beam search by the rules of transformers 4.57 (generation/utils.py, `_beam_search`), for one request at a time.

Scores are float32, and adding -1e9 erases a score on purpose, as in transformers. Two rules of the original are missing
because they only concern finished requests whose batch goes on. Here, a request leaves its batch when it is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .matcher import Floats, Matcher
from .processors import Edits, Endings, Processors, renormalize
from .request import Event, FinishReason, Request, Step, Top
from .search import check_best

DEAD = np.float32(-1e9)

Array = NDArray[np.int64]


@dataclass(frozen=True)
class Continuations:
    """The best continuations of all beams, best first: beam, next token, new score and raw log-probability of each.

    `log_probs` are only meaningful if the request wants log-probabilities.
    """

    beams: Array
    tokens: Array
    scores: Floats
    log_probs: Floats


class BeamSearch:
    """A `Search` of `num_beams` rows; row i holds the i-th best running beam."""

    uses_log_probs = True
    top_count = 0

    def __init__(self, request: Request) -> None:
        settings = request.settings
        start = settings.decoder_prompt or request.prompt
        self.rows = settings.num_beams
        self.wants_log_probs = settings.log_probs
        self.edits_by_id = settings.new_matcher is None and not settings.renormalize_logits
        self._settings = settings
        self._start = len(start)
        self._endings = Endings(settings, len(start))
        self._processors = Processors(settings, len(start))
        # Wide enough that `num_beams` continuations remain, however many others end.
        self._width = max(2, 1 + len(settings.eos_ids)) * self.rows
        # A forced token whose log-probability is wanted takes a run of its own.
        first = () if self.wants_log_probs else self._endings.forced_prefix()
        self.prompt = (*start, *first)
        self._length = len(self.prompt)
        self._ids = np.empty((self.rows, len(start) + settings.max_tokens), np.int64)
        self._ids[:, : self._length] = self.prompt
        self._log_probs = np.zeros((self.rows, settings.max_tokens if settings.log_probs else 0), np.float32)
        # The beams are equal at first: only one may be continued.
        self._scores = np.full(self.rows, DEAD, np.float32)
        self._scores[0] = 0
        self._finished: list[Event | None] = [None] * self.rows
        new = settings.new_matcher
        self._matchers: list[Matcher] = [new() for _ in range(self.rows)] if new else []
        self._finished_scores = np.full(self.rows, DEAD, np.float32)

    @property
    def candidates(self) -> int:
        """The number of candidates per row: one for each continuation to choose; 0 if the next token is forced."""
        return self._width if self.forced is None else 0

    @property
    def forced(self) -> int | None:
        """The token that this step must choose, or None if it is free."""
        return self._endings.forced(self._length - self._start)

    def allowed_token(self, argmax: int, logits: Floats) -> int | None:
        """Return None: beam search always needs scores, to compare its beams."""
        return None

    def next_inputs(self) -> Sequence[int]:
        """The newest token of each beam."""
        newest: list[int] = self._ids[:, self._length - 1].tolist()
        return newest

    def edits(self) -> Edits:
        """Return the changes of the logits processors."""
        return self._processors.edits(self._ids[:, : self._length])

    def edit(self, scores: Floats) -> None:
        """Apply the logits processors to `scores`, which are log-probabilities in beam search."""
        self.edits().apply(scores)
        for row, matcher in zip(scores, self._matchers):  # noqa: B905 - a matcher a row, or none at all
            matcher.forbid(row)
        if self._settings.renormalize_logits:
            renormalize(scores)

    def choose(self, values: Floats | None, ids: Array | None, log_probs: Floats | None = None, top: Top = ()) -> Step:
        """Continue the best beams. The step has no events before the search is over."""
        forced = self.forced
        if forced is None:
            assert values is not None and ids is not None
            parents, over = self._advance(self._best(values, ids, log_probs))
        else:
            parents, over = self._advance(self._all_forced(forced, log_probs))
        if not over and not self.wants_log_probs and (forced := self.forced) is not None:
            _, over = self._advance(self._all_forced(forced))
        return Step(parents, (), self._completions() if over else ())

    def cancelled(self) -> tuple[Event, ...]:
        """Return the best sequences so far: finished beams first, then running beams."""
        finished = [each for each in self._finished if each is not None]
        running = [self._hypothesis(beam, "cancelled") for beam in range(self.rows)]
        best = [*finished, *running][: self._settings.num_return_sequences]
        return tuple(replace(each, index=i, finish_reason="cancelled", score=None) for i, each in enumerate(best))

    def _best(self, values: Floats, ids: Array, log_probs: Floats | None) -> Continuations:
        scores = values[:, : self._width] + self._scores[:, None]
        check_best(float(scores.max()))
        best = np.argsort(-scores.ravel(), kind="stable")[: self._width]
        beams, columns = np.divmod(best, scores.shape[1])
        raw = scores if log_probs is None else log_probs
        return Continuations(beams, ids[beams, columns], scores[beams, columns], raw[beams, columns])

    def _all_forced(self, token: int, log_probs: Floats | None = None) -> Continuations:
        """Continue each beam with the forced `token` only. Its probability counts as 1, so scores stay the same."""
        order = np.argsort(-self._scores, kind="stable")
        beams = np.resize(order, self._width)
        scores = np.full(self._width, -np.inf, np.float32)
        scores[: self.rows] = self._scores[order]
        raw = np.zeros(self._width, np.float32) if log_probs is None else log_probs[beams, 0]
        return Continuations(beams, np.full(self._width, token), scores, raw)

    def _advance(self, best: Continuations) -> tuple[tuple[int, ...], bool]:
        """Make the best unfinished continuations the beams. Return the rows' parents, and whether the search ends."""
        new = self._ids[:, self._start : self._length]
        pairs = zip(best.beams.tolist(), best.tokens.tolist(), strict=True)
        ends = np.array([self._endings.ends(new[beam], token) for beam, token in pairs])
        self._finish(best, ends)
        live = best.scores + ends * DEAD
        order = np.argsort(-live, kind="stable")[: self.rows]
        self._scores = live[order]
        parents = best.beams[order]
        self._follow(parents, best.tokens[order], best.log_probs[order])
        return tuple(parents.tolist()), bool(ends.all()) or self._is_decided()

    def _finish(self, best: Continuations, ends: NDArray[np.bool_]) -> None:
        """Keep the best of the finished beams and of the beams that end now.

        Only the best `num_beams` continuations may end.
        """
        ended = np.flatnonzero(ends[: self.rows])
        if not ended.size:
            return
        length = self._length + 1 - self._start
        # Erased scores are equal, and torch's top-k leaves their order open. A beam that ends goes before an empty
        # place. With structured output, it goes behind an empty place, because a beam may end again, which must not end
        # the search too early.
        scores = np.concatenate(
            [best.scores[ended] / np.float32(length**self._settings.length_penalty), self._finished_scores]
        )
        places = np.roll(np.arange(scores.size), -ended.size if self._matchers else 0)
        order = places[np.argsort(-scores[places], kind="stable")][: self.rows]
        self._finished = [
            self._end(best, ended[i], scores[i]) if i < ended.size else self._finished[i - ended.size]
            for i in order.tolist()
        ]
        self._finished_scores = scores[order]

    def _end(self, best: Continuations, column: int, score: np.float32) -> Event:
        beam, token = best.beams[column], int(best.tokens[column])
        reason = self._endings.reason(self._ids[beam, self._start : self._length], token)
        body = self._hypothesis(beam, reason)
        log_probs = None if body.log_probs is None else (*body.log_probs, float(best.log_probs[column]))
        return replace(body, ids=(*body.ids, token), score=float(score), log_probs=log_probs)

    def _hypothesis(self, beam: int, reason: FinishReason) -> Event:
        ids = tuple(self._ids[beam, self._start : self._length].tolist())
        log_probs = tuple(self._log_probs[beam, : len(ids)].tolist()) if self.wants_log_probs else None
        return Event(0, ids, reason, float(DEAD), log_probs)

    def _follow(self, parents: Array, tokens: Array, log_probs: Floats) -> None:
        new = slice(self._start, self._length)
        self._ids[:, new] = self._ids[parents, new]
        self._ids[:, self._length] = tokens
        self._matchers = self._followed(parents, tokens)
        if self.wants_log_probs:
            used = self._length - self._start
            self._log_probs[:, :used] = self._log_probs[parents, :used]
            self._log_probs[:, used] = log_probs
        self._length += 1

    def _followed(self, parents: Array, tokens: Array) -> list[Matcher]:
        """The matchers of the beams that continue `parents` with `tokens`."""
        if not self._matchers:
            return []
        matchers = [self._matchers[parent].copy() for parent in parents.tolist()]
        if self.forced is None:
            for matcher, token in zip(matchers, tokens.tolist(), strict=True):
                matcher.take(token)
        return matchers

    def _is_decided(self) -> bool:
        """Whether enough beams are finished and no running beam is expected to become better."""
        settings = self._settings
        all_finished = None not in self._finished
        if settings.early_stopping is True and all_finished:
            return True
        hopeful = settings.early_stopping == "never" and settings.length_penalty > 0
        length = settings.max_tokens if hopeful else self._length - self._start
        possible = self._scores[0] / np.float32(length**settings.length_penalty)
        # The last score is DEAD while a place is free.
        return not possible > self._finished_scores[-1]

    def _completions(self) -> tuple[Event, ...]:
        returned = self._finished[: self._settings.num_return_sequences]
        nothing = Event(0, (), "length", float(DEAD), () if self.wants_log_probs else None)
        return tuple(replace(each or nothing, index=index) for index, each in enumerate(returned))
