"""Metrics of generated texts against the texts that people wrote.

Owns ROUGE-L (Lin 2004: the F-measure of the longest common subsequence of words) and exact match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

WORDS = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, in lower case. Unlike Google's rouge-score, of every script and not of ASCII alone."""
    return WORDS.findall(text.lower())


def rouge_l(answer: str, target: str) -> float:
    """ROUGE-L of one answer: the harmonic mean of its precision and recall; 0 where either has no word."""
    found, wanted = words(answer), words(target)
    common = _common(found, wanted)
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        corner = 0
        for column, other in enumerate(second, 1):
            above = row[column]
            row[column] = corner + 1 if word == other else max(above, row[column - 1])
            corner = above
    return row[-1]


def rouge(answers: Sequence[str], targets: Sequence[str]) -> float:
    """Mean ROUGE-L."""
    return sum(rouge_l(a, t) for a, t in zip(answers, targets, strict=True)) / len(targets)


def exact_match(answers: Sequence[str], targets: Sequence[str]) -> float:
    """Share of answers that are the target, but for outer blanks."""
    return sum(a.strip() == t.strip() for a, t in zip(answers, targets, strict=True)) / len(targets)


METRICS: Mapping[str, Callable[[Sequence[str], Sequence[str]], float]] = {"rouge": rouge, "exact_match": exact_match}
