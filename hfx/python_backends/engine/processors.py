"""Logits processors, which edit scores before a token is chosen, and the rules for ends of sequences and forced tokens.

The rules are those of transformers (generation/logits_process.py, stopping_criteria.py). The rules of
frequency_penalty, presence_penalty and logit_bias are OpenAI's. They come after those of transformers, like a
LogitsProcessor that is given to `generate`. Of the order, only this matters: the repetition penalty comes first, and
forced tokens come last. No array of the vocabulary's size is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..exponential import exp, log
from .generation_settings import logit_biases
from .request import FinishReason, Settings

Array = NDArray[np.int64]
Floats = NDArray[np.float32]

NONE: Array = np.empty(0, np.int64)
NO_AMOUNTS: Floats = np.empty((3, 0), np.float32)
BANNED = np.float32(-np.inf)
ROW_BITS = 40  # if a number combines a row and an id, the row begins at this bit


@dataclass(frozen=True, eq=False)
class Edits:
    """The changes to the scores of one step.

    `seen` [rows, n] has the ids whose scores `penalty` makes worse. `lowered` has rows, ids and the amounts to subtract
    from their scores; `biases` has ids and the amounts to add in each row. `everywhere` has ids that no row may choose;
    `banned` (rows, ids) has pairs of a row and an id that this row may not choose.
    """

    penalty: float = 1.0
    seen: Array | None = None
    lowered: tuple[Array, Array, Floats] | None = None
    biases: tuple[Array, Floats] | None = None
    everywhere: tuple[Array, ...] = ()
    banned: tuple[Array, Array] | None = None

    def __bool__(self) -> bool:
        return self is not NOTHING

    def apply(self, scores: NDArray[np.float32]) -> None:
        """Apply the changes to `scores` [rows, vocabulary], in place."""
        if self.seen is not None:
            where = (np.arange(len(scores))[:, None], self.seen)
            picked = scores[where]
            scores[where] = np.where(picked < 0, picked * self.penalty, picked / self.penalty)
        if self.lowered is not None:
            rows, ids, amounts = self.lowered
            scores[rows, ids] -= amounts
        if self.biases is not None:
            ids, amounts = self.biases
            scores[:, ids] += amounts
        for ids in self.everywhere:
            scores[:, ids] = BANNED
        if self.banned is not None:
            scores[self.banned] = BANNED

    def by_index(self, first: int, rows: int, vocabulary: int) -> tuple[Array, Floats, Array]:
        """Return the changes to `rows` rows from row `first` on, by indices of flattened scores [rows, vocabulary].

        The first array [n] has each index whose score changes once. The second [3, n] has the penalty of each of these
        scores, the amount to subtract from it, and the amount to add to it. The third array has the indices that may
        not be chosen.
        """
        if self is NOTHING:
            return NONE, NO_AMOUNTS, NONE
        starts = np.arange(first, first + rows)[:, None] * vocabulary
        banned = [(starts + ids).ravel() for ids in self.everywhere]
        if self.banned is not None:
            banned.append(starts[self.banned[0], 0] + self.banned[1])
        changes: list[tuple[int, Array, Floats | float]] = []  # row of the amounts, indices, amounts
        if self.seen is not None:
            changes.append((0, (starts + self.seen).ravel(), self.penalty))
        if self.lowered is not None:
            places, ids, lowered = self.lowered
            changes.append((1, starts[places, 0] + ids, lowered))
        if self.biases is not None:
            ids, added = self.biases
            changes.append((2, (starts + ids).ravel(), np.tile(added, rows)))
        changed, amounts = NONE, NO_AMOUNTS
        if changes:
            changed = np.unique(np.concatenate([indices for _, indices, _ in changes]))
            amounts = np.zeros((3, len(changed)), np.float32)
            amounts[0] = 1
            for kind, indices, amount in changes:
                amounts[kind, np.searchsorted(changed, indices)] = amount
        return changed, amounts, np.concatenate(banned) if banned else NONE


NOTHING = Edits()


class Processors:
    """Makes the edits of sequences that start with `start` tokens: a prompt, or an encoder-decoder's decoder prompt."""

    def __init__(self, settings: Settings, start: int) -> None:
        self._start = start
        self._penalty = settings.repetition_penalty
        self._frequency, self._presence = settings.frequency_penalty, settings.presence_penalty
        biases = logit_biases(settings.logit_bias)
        self._biases = (_array(tuple(biases)), np.array([*biases.values()], np.float32)) if biases else None
        self._ngram = settings.no_repeat_ngram_size
        self._words = _BadWords(settings)
        self._always = _array(settings.suppress_ids, self._words.single)
        self._eos = _array(settings.eos_ids)
        self._eos_from = start + settings.min_tokens
        # A forced first token counts as part of the beginning, so begin_suppress_ids apply to the token after it.
        self._begin = _array(settings.begin_suppress_ids)
        self._begins_at = start + (start == 1 and settings.forced_bos_id is not None)
        self._by_row = bool(self._ngram or self._words)
        bans = self._always.size or self._begin.size or settings.min_tokens or self._by_row
        changes = self._penalty != 1.0 or self._frequency or self._presence or self._biases is not None
        self._edits_none = not (bans or changes)

    def edits(self, histories: Array) -> Edits:
        """Return the edits for the choice of the token after `histories` [rows, length], which include the start."""
        if self._edits_none:
            return NOTHING
        length = histories.shape[1]
        early = self._eos if length < self._eos_from else NONE
        first = self._begin if length == self._begins_at else NONE
        everywhere = tuple(ids for ids in (self._always, early, first) if ids.size)
        banned = self._banned(histories) if self._by_row else None
        seen = histories if self._penalty != 1.0 else None
        lowered = self._lowered(histories[:, self._start :]) if self._frequency or self._presence else None
        if seen is None and lowered is None and self._biases is None and not everywhere and banned is None:
            return NOTHING
        return Edits(self._penalty, seen, lowered, self._biases, everywhere, banned)

    def _lowered(self, generated: Array) -> tuple[Array, Array, Floats] | None:
        """Return OpenAI's penalties of the tokens in `generated` [rows, n]. Tokens before these do not count."""
        if not generated.size:
            return None
        keys = generated + (np.arange(len(generated)) << ROW_BITS)[:, None]
        keys, counts = np.unique(keys, return_counts=True)
        amounts = counts.astype(np.float32) * np.float32(self._frequency) + np.float32(self._presence)
        return keys >> ROW_BITS, keys & ((1 << ROW_BITS) - 1), amounts

    def _banned(self, histories: Array) -> tuple[Array, Array] | None:
        rows, ids = repeats(histories, self._ngram) if self._ngram else (NONE, NONE)
        if self._words:
            worded_rows, worded_ids = self._words.banned(histories)
            rows, ids = np.concatenate([rows, worded_rows]), np.concatenate([ids, worded_ids])
        return (rows, ids) if rows.size else None


def repeats(histories: Array, size: int) -> tuple[Array, Array]:
    """Return the rows and ids that would repeat an n-gram of `size` tokens of the row's history."""
    length = histories.shape[1]
    starts = length - size + 1
    if starts < 1:
        return NONE, NONE
    if size == 1:
        return np.repeat(np.arange(len(histories)), length), histories.ravel()
    # First find the n-grams whose last token but one is the row's last token; few are left to compare further back.
    row, start = np.nonzero(histories[:, size - 2 : size - 2 + starts] == histories[:, -1:])
    for offset in range(size - 3, -1, -1):
        if not row.size:
            break
        same = histories[row, start + offset] == histories[row, starts + offset]
        row, start = row[same], start[same]
    return row, histories[row, start + size - 1]


def renormalize(scores: NDArray[np.float32]) -> None:
    """Normalize log-probabilities `scores` [rows, vocabulary] again, in place, except rows without a finite score."""
    highest = scores.max(axis=1, keepdims=True)
    rows = np.isfinite(highest[:, 0])
    shifted = scores[rows] - highest[rows]
    scores[rows] = shifted - log(exp(shifted).sum(axis=1, keepdims=True))


class _BadWords:
    """Token sequences that must not be completed. `single` has those of one token; an end token alone is allowed."""

    def __init__(self, settings: Settings) -> None:
        words = [word for word in settings.bad_words_ids if len(word) > 1 or word[0] not in settings.eos_ids]
        self._earliest = 0 if settings.bad_words_at_start else 1
        self.single: Ids = tuple(word[0] for word in words if len(word) == 1)
        self._by_last: dict[int, list[Ids]] = {}
        for word in words:
            if len(word) > 1:
                self._by_last.setdefault(word[-2], []).append(word)

    def __bool__(self) -> bool:
        return bool(self._by_last)

    def banned(self, histories: Array) -> tuple[Array, Array]:
        found = [
            (row, word[-1])
            for row, last in enumerate(histories[:, -1].tolist())
            for word in self._by_last.get(last, ())
            if _would_complete(histories[row], word, self._earliest)
        ]
        return _array([row for row, _ in found]), _array([last for _, last in found])


def _would_complete(history: Array, word: Ids, earliest: int) -> bool:
    """Whether one more token can make `history` end with `word`, which begins at index `earliest` or later."""
    begin = len(history) - len(word) + 1
    return begin >= earliest and tuple(history[begin:].tolist()) == word[:-1]


def _array(*parts: Ids | list[int]) -> Array:
    return np.array([one for part in parts for one in part], np.int64)


class Endings:
    """The rules for the ends and the forced tokens of sequences that start with `start` tokens.

    `generated` is the number of tokens after these.
    """

    def __init__(self, settings: Settings, start: int) -> None:
        self._start = start
        self._max_tokens = settings.max_tokens
        self._forced_first = settings.forced_bos_id
        self._forced_last = settings.forced_eos_id
        self._eos = frozenset(settings.eos_ids)
        self._stops: dict[int, list[Ids]] = {}
        for sequence in settings.stop_sequences:
            self._stops.setdefault(sequence[-1], []).append(sequence[:-1])

    def forced(self, generated: int) -> int | None:
        """Return the id of a forced next token, or None. A first token is only forced after a start of one token."""
        if self._forced_last is not None and generated == self._max_tokens - 1:
            return self._forced_last
        return self._forced_first if self._start + generated == 1 else None

    def forced_prefix(self) -> Ids:
        """Return the forced first token if it can be run together with the start, so that it costs no run."""
        first = self.forced(0)
        if first is None or self.ends(np.empty(0, np.int64), first):
            return ()
        return (first,)

    def ends(self, before: NDArray[np.int64], token: int) -> bool:
        """Whether a sequence whose new tokens are `before` is over with `token`."""
        return len(before) + 1 >= self._max_tokens or self._stopped(before, token)

    def reason(self, before: NDArray[np.int64], token: int) -> FinishReason:
        """Return why a sequence that is over has ended. A forced end token counts as "length", not as "stop"."""
        last = len(before) + 1 >= self._max_tokens
        if last and self._forced_last is not None:
            return "length"
        return "stop" if self._stopped(before, token) else "length"

    def _stopped(self, before: NDArray[np.int64], token: int) -> bool:
        if token in self._eos:
            return True
        return any(_ends_with(before, heads) for heads in self._stops.get(token, ()))


def _ends_with(ids: NDArray[np.int64], tail: Ids) -> bool:
    return len(tail) <= len(ids) and tuple(ids[len(ids) - len(tail) :].tolist()) == tail
