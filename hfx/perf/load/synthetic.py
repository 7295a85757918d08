"""Synthetic requests: texts of common words, with drawn lengths in words."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hfx.errors import UsageError
from hfx.names import CANDIDATE_LABELS, QUERY, QUESTION, TEXT_INPUT
from hfx.perf.load.requests import Request, RequestSet, Scalar, Settings, constants, settings_text

LABELS: tuple[Scalar, ...] = ("sports", "politics", "travel")
QUESTION_WORDS = 8
LONGEST = 1_000_000
FIX = "Give fixed:N, uniform:A-B or lognormal:MEDIAN,SIGMA[,MAX]."
WORDS = (
    "the", "garden", "of", "a", "friend", "was", "lovely", "and", "old", "house", "is", "quiet", "people", "went",
    "to", "market", "with", "her", "dog", "when", "it", "rained", "they", "found", "bread", "near", "river", "some",
    "children", "played", "music", "in", "that", "long", "summer", "for", "many", "days", "he", "wrote", "about",
    "work", "city", "light", "on", "water", "small", "boats", "came", "back", "before", "night", "we", "never", "saw",
)  # fmt: skip


def synthetic(
    count: int,
    lengths: Lengths,
    seed: int = 0,
    settings: Settings | None = None,
    tensors: Sequence[str] = (TEXT_INPUT,),
) -> RequestSet:
    """`count` requests with texts of drawn `lengths` in words. The same seed, the same texts.

    Of several `tensors`, a question or query is always short and labels are always the same. Raises UsageError.
    """
    if count < 1:
        raise UsageError(f"{count} requests can't be made.", "Give at least 1.")
    chance, shared = random.Random(seed), constants(settings)

    def text(tensor: str) -> tuple[Scalar, ...]:
        if tensor == CANDIDATE_LABELS:
            return LABELS
        if tensor in (QUESTION, QUERY):
            return (f"{_of_words(QUESTION_WORDS, chance)}?",)
        return (_of_words(lengths.draw(chance), chance),)

    items = tuple(Request({tensor: text(tensor) for tensor in tensors} | shared) for _ in range(count))
    plural = "" if lengths.words == "1" else "s"
    return RequestSet(items, f"synthetic texts of {lengths.words} word{plural}{settings_text(shared)}")


@dataclass(frozen=True)
class Lengths:
    """Lengths of texts: `draw` gives one, `words` says which there are."""

    words: str
    draw: Callable[[random.Random], int]


def parse_lengths(text: str) -> Lengths:
    """The lengths that `text` says: all alike, all equally likely, or log-normal as those of real prompts.

    Raises UsageError.
    """
    kind, _, numbers = text.strip().partition(":")
    try:
        return KINDS[kind](numbers)
    except (KeyError, ValueError):
        raise UsageError(f"The lengths {text!r} can't be read.", FIX) from None


def _fixed(numbers: str) -> Lengths:
    length = _length(numbers)
    return Lengths(f"{length}", lambda chance: length)


def _uniform(numbers: str) -> Lengths:
    least, most = map(_length, numbers.split("-"))
    if least > most:
        raise ValueError(numbers)
    return Lengths(f"{least} to {most}", lambda chance: chance.randint(least, most))


def _log_normal(numbers: str) -> Lengths:
    first, second, *bound = numbers.split(",")
    median, sigma, most = float(first), float(second), _length(*bound) if bound else LONGEST
    if not (1 <= median <= most and 0 < sigma <= 5):
        raise ValueError(numbers)

    def draw(chance: random.Random) -> int:
        drawn = chance.lognormvariate(math.log(median), sigma)
        return max(1, min(most, round(min(drawn, LONGEST))))

    limit = f", at most {most}" if bound else ""
    return Lengths(f"log-normal with median {median:g} and sigma {sigma:g}{limit}", draw)


def _length(text: str) -> int:
    length = int(text)
    if not 1 <= length <= LONGEST:
        raise ValueError(text)
    return length


KINDS: Mapping[str, Callable[[str], Lengths]] = {"fixed": _fixed, "uniform": _uniform, "lognormal": _log_normal}


def _of_words(count: int, chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=count))
