"""Ways in processes of their own: answers, clocks, and how each kind of failure is told."""

from __future__ import annotations

import os
import time

import pytest

from bench.errors import CaseFailed, OpenFailed, PeerFailed
from bench.peers.resident import Pace, Resident, apart
from tests.unit import perf_ways


def test_answers_and_stays_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with Resident(perf_ways.doubling, start=1) as way:
        assert way.answer(20) == 41
        assert way.pid != os.getpid()
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


def test_measures_at_a_pace() -> None:
    with Resident(perf_ways.moody) as way:
        sample = way.measure("sleep", Pace(seconds=0.2, fewest=1))
        assert 1 <= len(sample.seconds) <= 5
        assert min(sample.seconds) >= 0.05
        assert sample.cpu_seconds < 0.05  # it sleeps
        assert sample.value == "sleep"
        once = way.measure("sleep", Pace(seconds=0.0, fewest=1, wake_below=0.01))
        assert len(once.seconds) == 1


def test_what_can_not_be_opened_says_why() -> None:
    with pytest.raises(OpenFailed, match="ImportError: no module named peer"):
        Resident(perf_ways.refusing)


def test_a_process_that_dies_at_once_is_told_with_its_last_words() -> None:
    with pytest.raises(OpenFailed, match="ended with code 7: out of luck"):
        Resident(perf_ways.dying_at_once)


def test_a_failed_case_leaves_the_way_open() -> None:
    with Resident(perf_ways.moody) as way:
        with pytest.raises(CaseFailed, match="ValueError: not this one"):
            way.measure("raise", 0.01)
        assert way.answer("well") == "well"


def test_a_process_that_dies_is_told_and_stays_dead() -> None:
    with Resident(perf_ways.moody) as way:
        with pytest.raises(OpenFailed, match="ended with code 9: the last words"):
            way.answer("die")
        with pytest.raises(OpenFailed, match="has ended"):
            way.answer("well")


def test_a_silent_way_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with Resident(perf_ways.moody) as way:
        monkeypatch.setattr("bench.peers.resident.LONGEST_ANSWER", 0.01)
        begin = time.perf_counter()
        with pytest.raises(OpenFailed, match="no answer in"):
            way.answer("sleep")
        assert time.perf_counter() - begin < 5


def test_apart() -> None:
    assert apart(perf_ways.added, a=1, b=2) == 3
    with pytest.raises(OpenFailed, match="apart"):
        apart(perf_ways.failing)


def test_every_failure_is_a_peers() -> None:
    assert issubclass(OpenFailed, PeerFailed)
    assert issubclass(CaseFailed, PeerFailed)
    assert str(PeerFailed("one line", "and a fix")) == "one line"
