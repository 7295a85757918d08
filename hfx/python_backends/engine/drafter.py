"""Prompt lookup: a guess at what a sequence goes on with, from where its last tokens stood before.

Summaries, answers and code copy from their prompt. A guess changes no answer, as each token is chosen from the model's
own scores (plan.Pick); where it is right, one run of the model gives several tokens. With one guessed token a run takes
about 1.1 times as long as a step, with 7 1.2 times, with 15 1.7 to 2.1 times (distilgpt2, Flan-T5-base and BART-large
in int8, docs/benchmarks-generation.md).
"""

from __future__ import annotations

from .checks import Ids
from .plan import Outcome
from .search import Step

NGRAM = 3  # tokens that a place must have in common with the sequence's end
SHORTEST = 3  # tokens of a guess; twice as many after each that was right
LONGEST_PAUSE = 64  # steps without a guess; twice as many after each that was wrong from its first token


class Drafter:
    """Guesses, of at most `most` tokens, at what follows `prompt`, of which there are at most `max_tokens`."""

    def __init__(self, prompt: Ids, most: int, max_tokens: int) -> None:
        self._tokens = list(prompt)
        self._end = len(prompt) + max_tokens
        self._most = most
        self._length = min(SHORTEST, most)
        self._guessed = 0
        self._pause, self._next_pause = 0, 1
        # The position that the sequence is taken to copy next; it stays beside it through a few other tokens.
        self._place: int | None = None
        self._after: dict[Ids, int] = {}  # n-gram -> the last position behind it, of those up to `_indexed`
        self._indexed = NGRAM - 1

    def guess(self) -> Ids:
        """The tokens that may be next, none where there is no reason for a guess."""
        if self._pause:
            self._pause -= 1
            return ()
        tokens, end = self._tokens, len(self._tokens)
        place = self._place
        if place is None or tokens[place - 1] != tokens[-1]:
            place = self._look_up()
            if place is None:
                return ()
            self._place = place
        # A run gives a token more than were guessed.
        guess = tuple(tokens[place : place + min(self._length, self._end - end - 1)])
        self._guessed = len(guess)
        return guess

    def take(self, outcome: Outcome) -> None:
        """What was chosen after the last guess."""
        chosen = outcome.earlier + (outcome.result.emitted if isinstance(outcome.result, Step) else ())
        before = len(self._tokens)
        for event in chosen:
            self._tokens += event.ids
        if self._place is not None:
            self._place += len(self._tokens) - before
        guessed, self._guessed = self._guessed, 0
        if not guessed:
            return
        if outcome.accepted:
            right = outcome.accepted == guessed
            self._length = min(2 * self._length if right else max(outcome.accepted, SHORTEST), self._most)
            self._next_pause = 1
        else:
            self._length = min(SHORTEST, self._most)
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)

    def _look_up(self) -> int | None:
        """The last place with the n-gram that the tokens end with; those since the last call are indexed first."""
        tokens, end = self._tokens, len(self._tokens)
        for at in range(self._indexed + 1, end):
            self._after[tuple(tokens[at - NGRAM : at])] = at
        self._indexed = max(self._indexed, end - 1)
        return self._after.get(tuple(tokens[-NGRAM:]))
