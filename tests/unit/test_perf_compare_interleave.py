"""Turns are taken fairly, and who fails is named and gives no number."""

from __future__ import annotations

import threading

import pytest

from hfx.errors import LoadFailed
from hfx.perf.compare.interleave import Way, interleave
from hfx.perf.results import Run
from tests.unit.perf_compare_runs import run


class Turns:
    """Ways that write down who was measured when; `failing`: (label, round) that fail."""

    def __init__(self, failing: tuple[tuple[str, int], ...] = ()) -> None:
        self.taken: list[str] = []
        self.failing = failing

    def way(self, label: str) -> Way:
        def measure(number: int) -> Run:
            self.taken.append(f"{label}{number}")
            if (label, number) in self.failing:
                raise LoadFailed("No request\nsucceeded.", "Look.")
            return run(label, 1.0, round=number)

        return Way(label, measure)


def test_who_begins_changes_with_every_round():
    turns = Turns()
    runs = [*interleave([turns.way(label) for label in "abc"], 4)]
    assert " ".join(turns.taken) == "a0 b0 c0 b1 c1 a1 c2 a2 b2 a3 b3 c3"
    assert [each.round for each in runs] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_a_way_that_fails_at_once_becomes_a_note_and_the_others_go_on():
    turns, notes = Turns(failing=(("b", 0),)), []
    runs = [*interleave([turns.way("a"), turns.way("b")], 2, notes)]
    assert turns.taken == ["a0", "b0", "a1"]
    assert {each.subject.label for each in runs} == {"a"}
    assert notes == ["b was not measured: No request succeeded."]


def test_a_way_that_fails_later_keeps_its_rounds_and_says_how_many():
    turns, notes = Turns(failing=(("a", 2),)), []
    runs = [*interleave([turns.way("a"), turns.way("b")], 4, notes)]
    assert [each.round for each in runs if each.subject.label == "a"] == [0, 1]
    assert [each.round for each in runs if each.subject.label == "b"] == [0, 1, 2, 3]
    assert notes == ["a was measured in 2 rounds only: No request succeeded."]


def test_a_bug_is_no_note():
    def broken(number: int) -> Run:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        next(interleave([Way("a", broken)], 1, []))


def test_the_turns_end_where_stop_is_set_and_what_was_measured_is_given():
    turns, stop = Turns(), threading.Event()
    runs = []
    for each in interleave([turns.way("a"), turns.way("b")], 3, stop=stop):
        runs.append(each)
        if len(runs) == 3:
            stop.set()
    assert turns.taken == ["a0", "b0", "b1"]
    assert len(runs) == 3


def test_without_ways_there_is_nothing_to_measure():
    assert [*interleave([], 3)] == []
