"""How trials are judged: the score of a load, the Pareto front, the proof of a gain, and the pace of a budget."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from hfx.errors import LoadFailed, ServerError
from hfx.perf.compare.side import Case, Measure, Session, Side
from hfx.perf.load import Closed, Limits, RequestSet
from hfx.perf.measuring import MeasureSpec
from hfx.perf.results import Run
from hfx.perf.tuning.pace import LEAST, LONGEST, SLOW_LONGEST, pace
from hfx.perf.tuning.proof import prove, verdict
from hfx.perf.tuning.score import front, score
from hfx.perf.tuning.study import PUBLISHED, State, Trial
from hfx.perf.tuning.tune import best
from tests.unit.perf_tuning_runs import run


def trial(label: str, *runs: Run, state: State = "complete", reason: str = "") -> Trial:
    return Trial(label, {"instances": 1}, state, runs, reason)


# The score


def test_the_load_that_keeps_the_slo_with_the_most_throughput_counts() -> None:
    runs = (run(throughput=50, goodput=1.0), run(throughput=90, goodput=0.99), run(throughput=200, goodput=0.9))
    found = score(runs)
    assert (found.value, found.kept, found.run) == (90, True, runs[1])


def test_without_a_kept_slo_the_least_broken_load_counts() -> None:
    found = score((run(throughput=100, goodput=0.5), run(throughput=60, goodput=0.8)))
    assert not found.kept
    assert found.value == pytest.approx(60 * 0.64)


def test_without_an_slo_answers_count() -> None:
    assert score((run(succeeded=100),)).kept
    assert not score((run(succeeded=98),)).kept


def test_generators_are_held_by_their_tokens() -> None:
    assert score((run(throughput=10, tokens_per_second=500.0),)).value == 500


def test_at_a_given_rate_settings_that_hold_it_are_told_apart_by_their_latency() -> None:
    slow, quick, missing = (
        score((run(rate=50.0, p99=p99, goodput=goodput),)) for p99, goodput in ((80, 1.0), (20, 0.995), (5, 0.9))
    )
    assert quick.value > slow.value > missing.value
    assert quick.figure > slow.figure


# The front


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    runs = [run("a", 100, 10), run("b", 200, 20), run("c", 150, 30), run("d", 90, 15), run("e", 300, 40)]
    assert [each.subject.label for each in front(runs)] == ["a", "b", "e"]


def test_what_misses_the_slo_or_fails_is_not_on_the_front() -> None:
    runs = [run("a", 100, 10), run("b", 900, 5, goodput=0.5), run("c", 900, 5, succeeded=50)]
    assert [each.subject.label for each in front(runs)] == ["a"]
    assert front([]) == []


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_the_front_does_not_depend_on_the_order(order: Sequence[int]) -> None:
    runs = [run("a", 100, 10), run("b", 100, 20), run("c", 100, 10.2), run("d", 110, 50)]
    assert [each.subject.label for each in front([runs[n] for n in order])] == ["a", "d"]


# The best trial


def test_the_best_is_of_those_measured_in_full() -> None:
    early = trial("c", run(throughput=99), state="pruned")
    assert best([trial("a", run(throughput=10)), trial("b", run(throughput=20)), early]).label == "b"


def test_where_nothing_keeps_the_slo_the_best_found_is_said() -> None:
    trials = [trial("a", run(goodput=0.5, slo="latency<1ms")), trial("b", run(goodput=0.7, slo="latency<1ms"))]
    with pytest.raises(LoadFailed, match=r"No settings keep latency<1ms: at best 70.0 % .* instances=1"):
        best(trials)
    with pytest.raises(LoadFailed, match=r"No trial came to its end. no room"):
        best([trial("a", state="failed", reason="no room")])


# The proof


def rounds(*pairs: tuple[float, float]) -> list[Run]:
    """(published, new) requests a second, round by round."""
    return [
        run(label, value, round=number)
        for number, pair in enumerate(pairs, 1)
        for label, value in zip((PUBLISHED, "new"), pair, strict=True)
    ]


def test_a_gain_in_every_round_beyond_the_noise_is_proven() -> None:
    proof = verdict(rounds((100, 120), (102, 121), (99, 119)), "new")
    assert proof.proven
    assert proof.gain is not None
    assert proof.gain.median == pytest.approx(1.2, abs=0.01)
    assert proof.noise == pytest.approx(0.02, abs=0.01)
    assert proof.words.startswith("Proven: x1.20")


@pytest.mark.parametrize(
    "pairs",
    [
        ((100, 120), (102, 121), (99, 98)),  # not in every round
        ((100, 101), (90, 91), (110, 111)),  # always, but a side differs by more than that between rounds
        ((100, 90), (101, 91), (99, 89)),
        ((100, 100), (100, 100), (100, 100)),
    ],
    ids=["one round lost", "within noise", "slower", "equal"],
)
def test_anything_else_is_not_proven_and_the_published_settings_stay(pairs: Sequence[tuple[float, float]]) -> None:
    proof = verdict(rounds(*pairs), "new")
    assert not proof.proven
    assert "the published settings stay" in proof.words


def test_a_gain_that_breaks_the_slo_is_not_proven() -> None:
    runs = [run(each.subject.label, each.throughput, round=each.round, goodput=0.5) for each in rounds(*[(10, 90)] * 3)]
    assert not verdict(runs, "new").proven
    assert "missed the SLO" in verdict(runs, "new").words


def test_settings_that_keep_the_slo_win_over_those_that_do_not() -> None:
    shares = {PUBLISHED: 0.7, "new": 1.0}
    runs = [
        run(each.subject.label, each.throughput, round=each.round, goodput=shares[each.subject.label])
        for each in rounds((100, 95), (101, 96), (99, 94))
    ]
    assert verdict(runs, "new").proven


def test_too_few_rounds_prove_nothing() -> None:
    proof = verdict(rounds((100, 120), (100, 120)), "new", ["new was measured in 2 rounds only: gone"])
    assert not proof.proven
    assert "gone" in proof.words


CASE = Case(Closed(4), MeasureSpec(RequestSet((), ""), Limits(seconds=1.0)))


def side(label: str, values: Callable[[int], float], opened: list[str]) -> Side:
    @contextmanager
    def open_side(session: Session) -> Iterator[Measure]:
        opened.append(label)
        try:
            yield lambda case, number: run(label, values(number), round=number)
        finally:
            opened.append(f"{label} closed")

    return Side(label, open_side)


def test_both_sides_are_measured_in_turn_and_closed() -> None:
    opened: list[str] = []
    sides = [side(PUBLISHED, lambda number: 100.0 + number, opened), side("new", lambda number: 130.0, opened)]
    proof = prove(sides, [CASE], 4, Session())
    assert [(each.subject.label, each.round) for each in proof.runs] == [
        (PUBLISHED, 1), ("new", 1), ("new", 2), (PUBLISHED, 2), (PUBLISHED, 3), ("new", 3), ("new", 4), (PUBLISHED, 4),
    ]  # fmt: skip
    assert proof.proven
    assert sorted(opened) == sorted([PUBLISHED, "new", f"{PUBLISHED} closed", "new closed"])


def test_without_time_the_proof_has_its_least_rounds_and_still_ends_its_servers() -> None:
    opened: list[str] = []
    sides = [side(PUBLISHED, lambda number: 100.0, opened), side("new", lambda number: 130.0, opened)]
    proof = prove(sides, [CASE], 9, Session(), until=time.monotonic() - 1)
    assert len(proof.runs) == 2 * 3
    assert len(opened) == 4


def test_a_side_that_fails_in_between_proves_nothing() -> None:
    def failing(number: int) -> float:
        if number == 1:
            raise ServerError("the server died")
        return 200.0

    opened: list[str] = []
    proof = prove([side(PUBLISHED, lambda n: 100.0, opened), side("new", failing, opened)], [CASE], 3, Session())
    assert not proof.proven
    assert "the server died" in proof.words


def test_a_session_that_is_told_to_stop_has_no_verdict() -> None:
    session, opened = Session(), list[str]()

    def stopping(number: int) -> float:
        session.stop.set()
        return 100.0

    with pytest.raises(KeyboardInterrupt):
        prove([side(PUBLISHED, stopping, opened), side("new", lambda n: 100.0, opened)], [CASE], 3, session)
    assert len(opened) == 4


# The pace


@pytest.mark.parametrize("budget", [30.0, 60.0, 600.0, 3600.0])
@pytest.mark.parametrize("loads", [1, 3])
def test_a_budget_holds_its_proof_and_more_trials_the_larger_it_is(budget: float, loads: int) -> None:
    found = pace([run(throughput=1000)] * loads, overhead=3.0, margin=0.3, budget=budget, rounds=3)
    assert LEAST <= found.seconds <= LONGEST
    assert list(found.rungs) == sorted(found.rungs)
    if budget >= found.least:
        assert found.proof + 2 * found.trial <= budget
    assert found.proof <= max(0.25 * budget, 2 * 3 * 2 * (LEAST + 0.3)) + 2 * 3.0 + 2 * 3 * 2 * 0.3


def test_slow_requests_lengthen_the_measurements_as_far_as_the_budget_goes() -> None:
    slow, slower = [run(throughput=20.0)], [run(throughput=0.1)]
    assert pace(slow, 3.0, 0.3, 600.0, 3).rungs[0] == pytest.approx(1.11, abs=0.1)
    assert pace(slow, 3.0, 0.3, 60.0, 3).least <= 60
    assert pace(slower, 3.0, 0.3, 6000.0, 3).seconds == SLOW_LONGEST
    assert pace(slower, 3.0, 0.3, 10.0, 3).least > 10
