"""Sides are measured in turn under every load; those that fail are named, and memory decides whether they stay open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hfx.errors import LoadFailed, ServerError
from hfx.perf.compare.comparison import base_label, check_measured, compare
from hfx.perf.compare.side import Case, Measure, Session, Side
from hfx.perf.load import Closed, Limits, Request, RequestSet
from hfx.perf.measuring import MeasureSpec
from hfx.perf.results import Run
from tests.unit.perf_compare_runs import run

ASKS = RequestSet((Request({"text_input": ("a",)}),), "one text")
CASES = [Case(Closed(callers), MeasureSpec(ASKS, Limits(requests=1))) for callers in (1, 2)]
HUGE = 1 << 60


class Stage:
    """Sides that write down when they are opened, measured and closed."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def side(self, label: str, memory: int = 0, broken: str = "", failing_from: int = 99) -> Side:
        @contextmanager
        def opened(session: Session) -> Iterator[Measure]:
            self.events.append(f"open {label}")
            if broken:
                raise ServerError(broken, "Do something.")

            def measure(case: Case, number: int) -> Run:
                assert isinstance(case.plan, Closed)
                self.events.append(f"{label}{case.plan.callers}{number}")
                if number >= failing_from:
                    raise LoadFailed("It is gone.", "Look.")
                return run(label, 1.0, callers=case.plan.callers, round=number)

            try:
                yield measure
            finally:
                self.events.append(f"close {label}")

        return Side(label, opened, memory)


def test_all_are_open_at_once_and_take_turns_under_each_load():
    stage, notes = Stage(), []
    runs = [*compare([stage.side("a"), stage.side("b")], CASES, 2, notes)]
    assert " ".join(stage.events) == "open a open b a10 b10 b11 a11 a20 b20 b21 a21 close b close a"
    assert len(runs) == 8 and notes == []


def test_a_side_that_can_not_be_opened_is_named_and_has_no_number():
    stage, notes = Stage(), []
    sides = [stage.side("gpu", broken="no GPU\nhere"), stage.side("cpu")]
    runs = [*compare(sides, CASES, 2, notes)]
    assert notes == ["gpu was not run: no GPU here"]
    assert {each.subject.label for each in runs} == {"cpu"}
    assert base_label(sides, runs) == "cpu"


def test_a_side_that_fails_under_load_is_named_with_the_load():
    stage, notes = Stage(), []
    runs = [*compare([stage.side("a"), stage.side("b", failing_from=1)], CASES, 2, notes)]
    assert notes == [
        "b, 1 caller, was measured in 1 round only: It is gone.",
        "b, 2 callers, was measured in 1 round only: It is gone.",
    ]
    assert len([each for each in runs if each.subject.label == "b"]) == 2


def test_what_does_not_fit_into_memory_together_is_opened_for_its_turn():
    stage, notes = Stage(), []
    runs = [*compare([stage.side("a", HUGE), stage.side("b", HUGE)], CASES[:1], 2, notes)]
    turns = "open a a10 close a open b b10 close b open b b11 close b open a a11 close a"
    assert " ".join(stage.events) == turns
    assert len(runs) == 4
    assert notes == ["The sides do not fit into memory together: each was started for its turn and ended after it."]


def test_what_can_not_be_opened_is_not_tried_for_every_load():
    stage, notes = Stage(), []
    runs = [*compare([stage.side("a", HUGE, broken="No."), stage.side("b", HUGE)], CASES, 1, notes)]
    assert stage.events.count("open a") == 1
    assert notes[1:] == ["a, 1 caller, was not measured: No."]
    assert len(runs) == 2


def test_nothing_measured_is_an_error_with_all_reasons():
    with pytest.raises(LoadFailed, match=r"No side could be measured:\na was not run: No\."):
        check_measured([], ["a was not run: No."])


def test_an_interrupt_closes_what_is_open():
    stage, session = Stage(), Session()
    found = []
    for each in compare([stage.side("a"), stage.side("b")], CASES, 5, [], session):
        found.append(each)
        session.stop.set()
    assert len(found) == 1
    assert stage.events[-2:] == ["close b", "close a"]
