"""Tuning without a server: the score of trials, the search, and when a gain is proven."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import LoadFailed, ServerError
from hfx.perf.compare.candidates import Candidate, Case, Session
from hfx.perf.compare.candidates import Measure as MeasureCase
from hfx.perf.load import Closed, LoadLimits, RequestSet
from hfx.perf.measuring import MeasureSpec
from hfx.perf.results import Run
from hfx.perf.tuning.proof import Proof, judge, prove
from hfx.perf.tuning.scores import PUBLISHED, score
from hfx.perf.tuning.space import Dimension, Settings, Space
from hfx.perf.tuning.tune import Copies, Costs, Findings, Trial, TuneSpec, _reason, check_good, search
from tests.rigs.files.perf_runs import run

FOREVER = 1e12
MEASURE = MeasureSpec(RequestSet((), ""), LoadLimits(seconds=1.0))


def made_space(**values: tuple[int, ...]) -> Space:
    """Return a space with a dimension for each name; the first value is the published one."""
    dimensions = tuple(Dimension(name, {f"{name}={n}": {name: n} for n in numbers}) for name, numbers in values.items())
    return Space(dimensions, {name: numbers[0] for name, numbers in values.items()})


SPACE = made_space(instances=(1, 2, 4, 8), threads=(8, 4, 2, 1), delay=(0, 100, 500, 1000), batch=(64, 128, 256))


def capacity(settings: Settings) -> float:
    """Return requests a second: best at 4 instances of 2 threads without a delay."""
    instances, threads, delay = (int(settings[name]) for name in ("instances", "threads", "delay"))
    return 400.0 - 40 * abs(instances - 4) - 20 * abs(threads - 2) - delay / 10 + int(settings["batch"]) / 64


@dataclass(frozen=True)
class Measured(Copies):
    """Copies whose throughput follows from their settings; settings in `broken` fail to start."""

    broken: Settings = field(default_factory=dict)
    compared_labels: list[list[str]] = field(default_factory=list)

    def compared(self, trials: Mapping[str, Settings]) -> list[Trial]:
        self.compared_labels.append(list(trials))
        return [
            Trial(label, settings, (), f"{label} was not run: no room.")
            if self.broken and self.broken.items() <= settings.items()
            else Trial(label, settings, (run(label, capacity(settings), settings=dict(settings)),))
            for label, settings in trials.items()
        ]


def copies(max_trials: float = math.inf, **broken: int) -> Measured:
    spec = TuneSpec(Path(), "m", "cpu", (Closed(4),), MEASURE, 600.0, max_trials=max_trials)
    return Measured(spec, Path(), Session(), SPACE.old, broken)


def begun() -> Findings:
    return Findings(SPACE.old, [Trial(PUBLISHED, SPACE.old, (run(PUBLISHED, capacity(SPACE.old)),))])


def searched(copies: Measured, until: float = FOREVER, costs: Costs | None = None) -> Findings:
    findings = begun()
    findings.best = search(SPACE, copies, costs or Costs(1.0, 1.0, 1, 3), until, findings)
    return findings


# The score, and the best trial


def test_the_load_that_keeps_the_slo_with_the_most_throughput_counts() -> None:
    runs = (run(throughput=50, goodput=1.0), run(throughput=90, goodput=0.99), run(throughput=200, goodput=0.9))
    found = score(runs)
    assert (found.value, found.is_good, found.run) == (90, True, runs[1])
    broken = score((run(throughput=100, goodput=0.5), run(throughput=60, goodput=0.8)))
    assert not broken.is_good
    assert broken.value == pytest.approx(60 * 0.64), "the least broken load counts where none keeps it"


def test_without_an_slo_the_score_is_requests_or_tokens_a_second() -> None:
    assert score((run(succeeded=100),)).is_good
    assert not score((run(succeeded=98),)).is_good
    assert score((run(throughput=10, tokens_per_second=500.0),)).value == 500


def test_at_a_given_rate_settings_that_hold_it_are_told_apart_by_their_latency() -> None:
    slow, quick, missing = (
        score((run(rate=50.0, p99=p99, goodput=goodput),)) for p99, goodput in ((80, 1.0), (20, 0.995), (5, 0.9))
    )
    assert quick.value > slow.value > missing.value
    assert quick.figure > slow.figure


def trial(label: str, *runs: Run, reason: str = "") -> Trial:
    return Trial(label, {"instances": 1}, runs, reason)


def test_where_nothing_keeps_the_slo_the_best_found_is_said() -> None:
    check_good(trial("a", run(goodput=1.0, slo="latency<1ms")))
    with pytest.raises(LoadFailed, match=r"No settings keep latency<1ms: at best 70.0 % .* instances=1"):
        check_good(trial("b", run(goodput=0.7, slo="latency<1ms")))


# The proof


def rounds(*pairs: tuple[float, float], goodput: tuple[float, float] = (1.0, 1.0)) -> list[Run]:
    """Return (published, new) requests a second, round by round."""
    return [
        run(label, value, round=number, goodput=kept)
        for number, pair in enumerate(pairs, 1)
        for label, value, kept in zip((PUBLISHED, "new"), pair, goodput, strict=True)
    ]


def test_a_gain_in_every_round_beyond_the_noise_is_proven() -> None:
    proof = judge(rounds((100, 120), (102, 121), (99, 119)), "new")
    assert proof.proven
    assert proof.gain is not None
    assert proof.gain.median == pytest.approx(1.2, abs=0.01)
    assert proof.noise == pytest.approx(0.02, abs=0.01)


@pytest.mark.parametrize(
    "pairs",
    [
        ((100, 120), (102, 121), (99, 98)),  # not in every round
        ((100, 101), (90, 91), (110, 111)),  # always, but a candidate differs by more than that between rounds
        ((100, 120), (100, 120)),  # too few rounds
    ],
)
def test_a_gain_that_is_inconsistent_or_within_the_noise_is_not_proven(pairs: Sequence[tuple[float, float]]) -> None:
    assert not judge(rounds(*pairs), "new").proven


def test_the_slo_comes_before_the_throughput() -> None:
    assert not judge(rounds(*[(10, 90)] * 3, goodput=(1.0, 0.5)), "new").proven
    assert judge(rounds((100, 95), (101, 96), (99, 94), goodput=(0.7, 1.0)), "new").proven


def test_the_gain_is_of_one_load_which_the_verdict_names() -> None:
    runs = [
        run(label, value, callers=callers, round=number, case="final")
        for number in (1, 2, 3)
        for label, callers, value in ((PUBLISHED, 8, 110), (PUBLISHED, 16, 100), ("new", 8, 90), ("new", 16, 120))
    ]
    proof = judge(runs, "new")
    assert proof.proven and proof.gain is not None and proof.gain.median == pytest.approx(1.2)
    assert proof.verdict.startswith("Proven: 1.2× (1.2 to 1.2, 3 rounds) the requests/s with 16 callers; ")
    fallen = [replace(each, throughput=115) if each.throughput == 120 else each for each in runs]
    assert judge(fallen, "new").proven
    other = [replace(each, throughput=105) if each.throughput == 120 else each for each in runs]
    assert not judge(other, "new").proven, "with 8 callers the published settings do more"
    assert "another load" in judge(other, "new").verdict


def test_published_settings_that_miss_the_slo_have_no_ratio() -> None:
    proof = judge(rounds((100, 95), (101, 96), (99, 94), goodput=(0.7, 1.0)), "new")
    assert "which the published ones miss" in proof.verdict and "×" not in proof.verdict


def proved(new: Callable[[Session, int], float], session: Session, until: float = FOREVER) -> Proof:
    """Return the proof of three rounds with 100 and `new` requests a second; `new` gets the round's number."""

    def candidate(label: str, throughput: Callable[[Session, int], float]) -> Candidate:
        @contextmanager
        def opened_candidate(session: Session) -> Iterator[MeasureCase]:
            yield lambda case, number: run(label, throughput(session, number), round=number)

        return Candidate(label, opened_candidate)

    case = Case(Closed(4), MeasureSpec(RequestSet((), ""), LoadLimits(seconds=1.0)))
    return prove([candidate(PUBLISHED, lambda *_: 100.0), candidate("new", new)], [case], 3, session, until)


def test_old_and_new_settings_are_measured_in_alternating_rounds() -> None:
    proof = proved(lambda *_: 130.0, Session())
    turns = [(each.subject.label == "new", each.round) for each in proof.runs]
    assert turns == [(False, 1), (True, 1), (True, 2), (False, 2), (False, 3), (True, 3)]
    assert proof.proven


def test_a_failure_during_the_proof_leaves_the_gain_unproven() -> None:
    def failing(session: Session, number: int) -> float:
        if number == 1:
            raise ServerError("the server died")
        return 200.0

    proof = proved(failing, Session())
    assert not proof.proven
    assert "the server died" in proof.verdict


def test_a_proof_ends_with_the_budget() -> None:
    proof = proved(lambda *_: 130.0, Session(), until=time.monotonic())
    assert (len(proof.runs), proof.proven) == (1, False)
    assert "the budget ended the proof after 1 measurements" in proof.verdict


def test_a_stopped_session_has_no_verdict() -> None:
    def stopping(session: Session, number: int) -> float:
        session.stop.set()
        return 100.0

    with pytest.raises(KeyboardInterrupt):
        proved(stopping, Session())


# The search


def test_the_best_settings_are_found_a_dimension_at_a_time() -> None:
    measured = copies()
    found = searched(measured)
    assert found.best is not None
    assert found.best.settings == {"instances": 4, "threads": 2, "delay": 0, "batch": 256}
    settings = [tuple(each.settings.items()) for each in found.trials]
    assert len({*settings}) == len(settings) < SPACE.size / 4
    assert [each.label for each in found.trials] == [PUBLISHED, *(f"trial {at}" for at in range(1, len(settings)))]
    first, second, *_ = measured.compared_labels
    assert first == [PUBLISHED, "trial 1", "trial 2", "trial 3"]
    assert second[0] == "trial 2", "4 instances are the next to beat"


def test_settings_that_can_not_be_served_are_failed_trials_and_the_search_goes_on() -> None:
    found = searched(copies(instances=4))
    assert found.best is not None and found.best.settings["instances"] == 2
    failed = [each for each in found.trials if not each.runs]
    assert {each.settings["instances"] for each in failed} == {4}
    assert all("no room" in each.reason for each in failed)


def test_the_reason_of_a_failed_trial_is_its_own() -> None:
    notes = ["trial 10 was not run: no room.", "trial 1, 4 callers, was not measured: it died"]
    assert _reason("trial 10", notes) == "was not run: no room."
    assert _reason("trial 1", notes) == "4 callers, was not measured: it died"
    assert _reason("trial 2", notes) == "it was not measured"


def test_a_search_ends_after_so_many_trials() -> None:
    assert len(searched(copies(max_trials=5)).trials) == 5


def test_a_search_ends_while_there_is_time_for_the_proof() -> None:
    costs = Costs(start=10.0, measurement=1.0, loads=1, rounds=3)  # a candidate: 11 s, the proof: 26 s
    measured = copies()
    searched(measured, time.monotonic() + 26 + 3 * 11 + 5, costs)
    assert measured.compared_labels[0] == [PUBLISHED, "trial 1", "trial 2"], "of three that differ in it"
    assert len(searched(copies(), time.monotonic() + 26 + 11, costs).trials) == 1


@pytest.mark.parametrize(
    ("budget", "loads", "seconds"), [(10.0, 1, 1.0), (600.0, 1, 10.0), (600.0, 4, 2.5), (1e5, 1, 30.0)]
)
def test_measurements_are_as_long_as_the_budget_has_room_for(budget: float, loads: int, seconds: float) -> None:
    spec: Any = replace(copies().spec, budget=budget, plans=(Closed(4),) * loads)
    assert spec.seconds == pytest.approx(seconds)
