"""Greedy decoding and sampling: a sequence in its own row, continued by the best token or by a sampled token.

The samples of a request depend on this request alone. The distribution is that of transformers (temperature, top_k,
top_p, min_p, typical_p, epsilon_cutoff, in this order). The sample is not torch's: it is the inverse of the cumulative
distribution at a number from Philox with the key (seed, sequence) and the counter (position), so a request gets the
same tokens whatever runs beside it. If several scores equal that of the last of top_k candidates, transformers keeps
all of them. This module keeps exactly top_k candidates, unless top_k is above MOST_CANDIDATES.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..exponential import exp, log
from .matcher import Floats, Matcher
from .processors import BANNED, Edits, Endings, Processors
from .request import Event, FinishReason, Request, Settings, Step, Top
from .search import WHOLE_ROW, check_best

# A larger top_k is taken from the whole row: sorting so many candidates costs more than looking at each.
MOST_CANDIDATES = 1024
BLOCK = 512
IN_PLACE = (0,)


class SingleSearch:
    """A `Search` of one row: sequence `index` of `request`.

    Without do_sample, it takes the best token of the processed scores, like transformers' `generate` without beams.
    While the settings change no score, it needs only the graph's argmax.
    """

    rows = 1
    uses_log_probs = False

    def __init__(self, request: Request, index: int) -> None:
        settings = request.settings
        start = settings.decoder_prompt or request.prompt
        self.wants_log_probs = settings.log_probs
        self.edits_by_id = settings.new_matcher is None
        self.top_count = settings.top_log_probs
        self._index = index
        self._start = len(start)
        self._settings = settings
        self._key = np.array([settings.seed, index], np.uint64)
        # The number of candidates to sample from; 0: no sampling.
        top_k = settings.top_k if 0 < settings.top_k <= MOST_CANDIDATES else WHOLE_ROW
        self._drawn_from = top_k if settings.do_sample else 0
        self._endings = Endings(settings, len(start))
        self._processors = Processors(settings, len(start))
        self._ids = np.empty((1, len(start) + settings.max_tokens), np.int64)
        self._ids[0, : len(start)] = start
        self._length = len(start)
        self._log_probs: list[float] = []
        self._top: list[Top] = []
        self._reason: FinishReason | None = None
        self._matcher: Matcher | None = None
        # A forced first token is run with the prompt and emitted with the first token that is chosen. If its
        # log-probability is wanted, it takes a run of its own.
        first = () if self.wants_log_probs else self._endings.forced_prefix()
        self._unsent = [self._append(token) for token in first]
        self.prompt: Ids = tuple(self._ids[0, : self._length].tolist())
        if settings.new_matcher is not None:
            self._matcher = settings.new_matcher()
        self._look_ahead()

    @property
    def candidates(self) -> int:
        """The number of candidates that `choose` needs in this step.

        It is 0 for a forced token. In greedy decoding, it is 1 if scores are edited, else 0.
        """
        if self.forced is not None:
            return 0
        return self._drawn_from or int(bool(self._edits) or self._matcher is not None)

    def allowed_token(self, argmax: int, logits: Floats) -> int | None:
        """Return the best token that the matcher allows, or a sample of the allowed tokens if these are few.

        Returns None if the search needs scores: without a matcher, with other edits, or for a sample of many tokens.
        """
        if self._matcher is None or self._edits:
            return None
        if not self._drawn_from:
            return self._matcher.best(logits, argmax)
        few = self._matcher.few()
        return None if few is None else self._drawn(few, logits)

    def next_inputs(self) -> Sequence[int]:
        """Return the newest token, the next input of the only row."""
        return (int(self._ids[0, self._length - 1]),)

    def edits(self) -> Edits:
        """Return the changes of the processors."""
        return self._edits

    def edit(self, scores: Floats) -> None:
        """Apply the processors to `scores` [1, vocabulary], in place."""
        self._edits.apply(scores)
        if self._matcher is not None:
            self._matcher.forbid(scores[0])

    def choose(
        self, values: Floats | None, ids: NDArray[np.int64] | None, log_probs: Floats | None = None, top: Top = ()
    ) -> Step:
        """Take the first of `ids`, or sample one of them or of the whole row. A forced token is not sampled."""
        column = 0 if values is None else self._column(values[0], ids is None)
        token = column if ids is None else int(ids[0, column])
        return self._take(token, None if log_probs is None else float(log_probs[0, column]), top)

    def take(self, token: int) -> Step:
        """Continue with `token`, whose log-probability is not wanted."""
        return self._take(token, None, ())

    def cancelled(self) -> tuple[Event, ...]:
        """Return the sequence up to the last token that was emitted."""
        return (self._completion("cancelled", self._generated - len(self._unsent)),)

    @property
    def _generated(self) -> int:
        """The number of tokens after the start."""
        return self._length - self._start

    def _column(self, values: Floats, whole_row: bool) -> int:
        """Return the index of the choice in `values`, which are the best scores, best first, or a whole row."""
        if not self._drawn_from:
            check_best(float(values[0]))
            return 0
        number = uniform(self._key, self._generated)
        if whole_row:
            return position_of(*weights_of_row(values, self._settings), number)
        return position(weights_of_best(values[: self._drawn_from], self._settings), number)

    def _drawn(self, few: NDArray[np.int64], logits: Floats) -> int:
        """Sample one of `few` tokens, with the same result, to the bit, as if all other logits were minus infinity."""
        settings, number, values = self._settings, uniform(self._key, self._generated), logits[few]
        if self._drawn_from == WHOLE_ROW:
            weights = np.zeros_like(logits)
            weights[few] = _weights(values, values.max(initial=BANNED), settings.temperature)
            return position_of(*_kept_of_row(weights, settings), number)
        order = (-values).argsort(kind="stable")[: self._drawn_from]
        best = np.full(min(self._drawn_from, len(logits)), BANNED)
        best[: len(order)] = values[order]
        return int(few[order[position(weights_of_best(best, settings), number)]])

    def _take(self, token: int, log_prob: float | None, top: Top) -> Step:
        """Append `token`, and the forced tokens after it unless log-probabilities are wanted."""
        emitted = [*self._unsent, self._append(token, log_prob, top)]
        self._unsent = []
        self._look_ahead()
        while self.forced is not None and self._reason is None and not self.wants_log_probs:
            emitted.append(self._append(self.forced))
            self._look_ahead()
        return Step(IN_PLACE, tuple(emitted), () if self._reason is None else (self._completion(self._reason),))

    def _append(self, token: int, log_prob: float | None = None, top: Top = ()) -> Event:
        before = self._ids[0, self._start : self._length]
        if self._endings.ends(before, token):
            self._reason = self._endings.reason(before, token)
        if self._matcher is not None and self.forced is None:
            self._matcher.take(token)
        self._ids[0, self._length] = token
        self._length += 1
        if log_prob is None:
            return Event(self._index, (token,))
        self._log_probs.append(log_prob)
        self._top += (top,) * bool(self.top_count)
        return Event(self._index, (token,), log_probs=(log_prob,), top=tuple(self._top[-1:]))

    def _look_ahead(self) -> None:
        """Set the token that the next step must choose (`forced`), and the edits of its scores."""
        if self._reason is None:
            self.forced = self._endings.forced(self._generated)
            self._edits = self._processors.edits(self._ids[:, : self._length])

    def _completion(self, reason: FinishReason, length: int | None = None) -> Event:
        ids = self._ids[0, self._start : self._length].tolist()[:length]
        log_probs = tuple(self._log_probs[:length]) if self.wants_log_probs else None
        return Event(self._index, tuple(ids), reason, None, log_probs, tuple(self._top[:length]))


def uniform(key: NDArray[np.uint64], counter: int) -> float:
    """Return a number in [0, 1) with 53 bits: the first of Philox's block number `counter` for `key`."""
    return float(np.random.Philox(key=key, counter=counter).random_raw() >> 11) * 2.0**-53


def weights_of_best(values: Floats, settings: Settings) -> Floats:
    """Return the weights to sample from, for the first of `values` [k], which are in descending order.

    A weight is 0 if the token is not a candidate.
    """
    weights = _weights(values, values[0], settings.temperature)
    if settings.top_p < 1:
        weights = weights[: _kept(weights[::-1], 0.0, settings.top_p)]
    if settings.min_p > 0:
        weights = weights[: np.count_nonzero(weights >= settings.min_p)]
    _cut(weights, settings)
    return weights


def weights_of_row(values: Floats, settings: Settings) -> tuple[NDArray[np.int64] | None, Floats]:
    """Return the ids (None: all, in order) and weights of a whole row `values` [vocabulary] to sample from.

    A weight is 0 if the token is not a candidate.
    """
    weights = _weights(values, values.max(), settings.temperature)
    if 0 < settings.top_k < len(values):
        weights[values < np.partition(values, -settings.top_k)[-settings.top_k]] = 0
    return _kept_of_row(weights, settings)


def _kept_of_row(weights: Floats, settings: Settings) -> tuple[NDArray[np.int64] | None, Floats]:
    lowest = np.float32(settings.min_p)
    if settings.top_p < 1:
        lowest = max(lowest, _lowest_of_nucleus(weights, settings.top_p))
    columns = np.flatnonzero(weights >= lowest) if lowest > 0 else None
    weights = weights if columns is None else weights[columns]
    _cut(weights, settings)
    return columns, weights


def position(weights: Floats, number: float) -> int:
    """Return the index at which the cumulative share of `weights` passes `number`."""
    cumulative = weights.cumsum(dtype=np.float64)
    check_best(float(cumulative[-1]))  # NaN if any score was NaN
    found = int(cumulative.searchsorted(number * cumulative[-1], side="right"))
    # Rounding may leave nothing beyond `number`; then the last weight that is not 0 is right.
    return found if found < len(weights) else int(np.flatnonzero(weights)[-1])


def position_of(columns: NDArray[np.int64] | None, weights: Floats, number: float) -> int:
    """Return the `position` as an index of the row, from the `columns` and `weights` that `weights_of_row` returned."""
    return position_in_row(weights, number) if columns is None else int(columns[position(weights, number)])


def position_in_row(weights: Floats, number: float) -> int:
    """Return the `position` in a whole vocabulary: find the block first, then the place in it."""
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK))
    ends = blocks.cumsum(dtype=np.float64)
    target = number * ends[-1]
    block = min(int(ends.searchsorted(target, side="right")), int(np.flatnonzero(blocks)[-1]))
    rest = (target - (ends[block - 1] if block else 0.0)) / float(blocks[block])
    return block * BLOCK + position(weights[block * BLOCK : (block + 1) * BLOCK], rest)


def _weights(values: Floats, best: np.float32, temperature: float) -> Floats:
    check_best(float(best))
    weights = values - best
    weights /= np.float32(temperature)
    exp(weights, out=weights)
    return weights


def _cut(weights: Floats, settings: Settings) -> None:
    """Set weights to 0 by the settings that depend on all shares: typical_p and epsilon_cutoff."""
    if settings.typical_p < 1:
        _cut_untypical(weights, settings.typical_p)
    if settings.epsilon_cutoff > 0:
        unlikely = weights / weights.sum() < np.float32(settings.epsilon_cutoff)
        weights[unlikely & (weights < weights.max())] = 0


def _cut_untypical(weights: Floats, typical_p: float) -> None:
    """Keep the tokens whose information is nearest to the entropy, until their share is at least `typical_p`."""
    columns = np.flatnonzero(weights)
    shares = weights[columns] / weights.sum()
    information = -log(shares)
    distance = np.abs(information - (shares * information).sum())
    nearest = np.argsort(distance, kind="stable")
    last = np.count_nonzero(shares[nearest].cumsum(dtype=np.float64) < typical_p)
    weights[columns[distance > distance[nearest[min(last, len(nearest) - 1)]]]] = 0


def _kept(ascending: Floats, below: float, top_p: float) -> int:
    """Return how many of the `ascending` weights are kept. `below` is the sum of lower weights, which are dropped."""
    cumulative = ascending.cumsum(dtype=np.float64) + below
    share = (cumulative / cumulative[-1]).astype(np.float32)
    return max(1, len(share) - int(share.searchsorted(np.float32(1 - top_p), side="right")))


def _lowest_of_nucleus(weights: Floats, top_p: float) -> np.float32:
    """Return the least weight among the likeliest tokens that together have a share of at least `top_p`."""
    total = float(weights.sum(dtype=np.float64))
    cut = (1 - top_p) * total
    likely, below = weights, 0.0
    narrows = True
    while narrows:
        # All weights up to this bound add up to no more than is still to be cut, so only the rest needs sorting. The
        # best, whose weight is 1, is kept whatever top_p is.
        narrower = likely[likely > min((cut - below) / len(likely), 0.5)]
        narrows = len(narrower) < len(likely) / 2
        likely, below = narrower, total - float(narrower.sum(dtype=np.float64))
    likely = np.sort(likely)
    least: np.float32 = likely[len(likely) - _kept(likely, below, top_p)]
    return least
