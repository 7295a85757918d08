"""Metrics of generated texts, compared with values worked out by hand and with Google's rouge-score 0.1.2."""

from __future__ import annotations

import math

import pytest

from hfx.exporter.generation.tasks import exact_match, rouge, rouge_l, words

# The expected numbers are rouge-score's fmeasure for rougeL, without stemming.
SCORED = [
    ("the cat sat on the mat", "the cat sat on the mat", 1.0),
    ("the cat", "a dog", 0.0),
    ("police killed the gunman", "police kill the gunman", 0.75),
    ("the gunman kill police", "police kill the gunman", 0.5),
    ("The quick brown fox.", "the quick, brown dog jumped!", 0.6666666666666666),
    ("one two three four", "four three two one", 0.25),
    ("", "nothing was said", 0.0),
    ("something was said", "", 0.0),
    ("...", "...", 0.0),
]


@pytest.mark.parametrize(("answer", "target", "score"), SCORED)
def test_rouge_l_is_that_of_rouge_score(answer: str, target: str, score: float) -> None:
    assert math.isclose(rouge_l(answer, target), score, abs_tol=1e-12)


def test_words_are_of_every_script_and_of_no_case() -> None:
    assert words("Ünï-code, 世界 42 dˈʌɡ!") == ["ünï", "code", "世界", "42", "dˈʌɡ"]
    assert rouge_l("世界 平和", "世界 平和") == 1.0


def test_rouge_is_the_mean() -> None:
    assert rouge([{"text_output": "a b"}, {"text_output": "x"}], ["a b", "y"]) == 0.5


def test_exact_match_looks_at_all_but_outer_blanks() -> None:
    answers = [{"text_output": text} for text in (" a b\n", "A b", "a  b")]
    assert exact_match(answers, ["a b", "a b", "a b"]) == pytest.approx(1 / 3)
