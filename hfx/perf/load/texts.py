"""Synthetic texts: so many common words, or exactly so many tokens of a tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable

from hfx.errors import UsageError

WORDS = (
    "the", "garden", "of", "a", "friend", "was", "lovely", "and", "old", "house", "is", "quiet", "people", "went",
    "to", "market", "with", "her", "dog", "when", "it", "rained", "they", "found", "bread", "near", "river", "some",
    "children", "played", "music", "in", "that", "long", "summer", "for", "many", "days", "he", "wrote", "about",
    "work", "city", "light", "on", "water", "small", "boats", "came", "back", "before", "night", "we", "never", "saw",
)  # fmt: skip
FILLER = " a"
MOST_FILLERS = 64
MOST_WORDS = 4_000_000


def of_words(count: int, chance: random.Random) -> str:
    """A text of COUNT words."""
    return " ".join(chance.choices(WORDS, k=count))


def of_tokens(count: int, tokens: Callable[[str], int], chance: random.Random) -> str:
    """A text of exactly COUNT tokens by TOKENS, special ones included. Raises UsageError where there is none."""
    drawn = chance.choices(WORDS, k=count)
    while tokens(" ".join(drawn)) < count and len(drawn) < MOST_WORDS:
        drawn += chance.choices(WORDS, k=len(drawn))
    # The most words that do not exceed it: the count rises with every word.
    least, most = 0, len(drawn)
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if tokens(" ".join(drawn[:middle])) <= count else (least, middle - 1)
    text = " ".join(drawn[:least])
    for _ in range(MOST_FILLERS):  # a word of several tokens would overshoot: single letters fill up
        if tokens(text) >= count:
            break
        text += FILLER
    if tokens(text) != count:
        raise UsageError(f"No text has exactly {count} tokens for this model.", "Give more tokens.")
    return text
