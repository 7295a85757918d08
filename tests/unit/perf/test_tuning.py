"""Tuning without a server: how trials are judged, what a search with real Optuna finds, records, and resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import pytest

from hfx.errors import LoadFailed, ServerError, UsageError
from hfx.perf.compare.candidates import Candidate, Case, Session
from hfx.perf.compare.candidates import Measure as MeasureCase
from hfx.perf.load import Closed, LoadLimits, RequestSet
from hfx.perf.measuring import MeasureSpec
from hfx.perf.results import Run
from hfx.perf.tuning.search import (
    FIRST,
    LONGEST,
    SLOW_LONGEST,
    Budget,
    Measure,
    Proof,
    budget,
    first,
    judge,
    prove,
    search,
)
from hfx.perf.tuning.space import Dimension, Settings, Space
from hfx.perf.tuning.study import PUBLISHED, State, Study, Trial, opened, score
from hfx.perf.tuning.tune import best
from tests.rigs.perf_runs import run

IDENTITY = {"model": "m"}
FOREVER = 1e12
BUDGET = Budget(seconds=9.0, loads=1, rounds=3, overhead=1.0, margin=0.1)


def made_space(**values: tuple[int, ...]) -> Space:
    """A dimension for each name; the first value is the published one."""
    dimensions = tuple(Dimension(name, {f"{name}={n}": {name: n} for n in numbers}) for name, numbers in values.items())
    return Space(dimensions, {name: numbers[0] for name, numbers in values.items()})


SPACE = made_space(instances=(1, 2, 4, 8), threads=(8, 4, 2, 1), delay=(0, 100, 500, 1000), batch=(64, 128, 256))
SMALL = made_space(instances=(1, 2), threads=(8, 2), delay=(0,), batch=(64,))


def capacity(settings: Settings) -> float:
    """Requests a second: best at 4 instances of 2 threads without a delay, 200 at the published settings."""
    instances, threads, delay = (int(settings[name]) for name in ("instances", "threads", "delay"))
    return 400.0 - 40 * abs(instances - 4) - 20 * abs(threads - 2) - delay / 10 + int(settings["batch"]) / 64


@dataclass
class Server:
    """Opens trials whose throughput follows from their settings; settings in `broken` fail to start."""

    broken: Settings = field(default_factory=dict)
    measured: list[tuple[str, Settings, float]] = field(default_factory=list)

    @contextmanager
    def opened(self, label: str, settings: Settings) -> Iterator[Measure]:
        if self.broken and self.broken.items() <= settings.items():
            raise ServerError("the model does not load:\nno room")

        def measure(seconds: float) -> tuple[Run, ...]:
            self.measured.append((label, settings, seconds))
            wrong = 1 + 0.02 / seconds * (-1 if len(self.measured) % 2 else 1)  # short measurements are less exact
            return (run(label, capacity(settings) * wrong, settings=dict(settings)),)

        yield measure

    @contextmanager
    def interrupted(self, label: str, settings: Settings) -> Iterator[Measure]:
        self.measured.append((label, settings, 0.0))
        yield lambda seconds: (replace(run(label), interrupted=True),)


def study_in(path: Path, space: Space = SPACE, *, again: bool = True, seed: int = 0) -> AbstractContextManager[Study]:
    return opened(path, IDENTITY, space, seed, again)


def begin(study: Study, server: Server) -> Trial:
    with server.opened(PUBLISHED, study.space.old) as measure:
        return first(study, BUDGET, measure)


def searched(
    path: Path, count: int, *, space: Space = SPACE, seed: int = 0, server: Server | None = None
) -> list[Trial]:
    """The trials of the unfinished study in `path` after `count` more."""
    server = server or Server()
    try:
        with study_in(path, space, seed=seed) as study:
            if not study.trials:
                begin(study, server)
                count -= 1
            list(islice(search(study, BUDGET, FOREVER, server.opened), count))
            raise InterruptedError
    except InterruptedError:
        return study.trials


# The score, and the best trial


def test_the_load_that_keeps_the_slo_with_the_most_throughput_counts() -> None:
    runs = (run(throughput=50, goodput=1.0), run(throughput=90, goodput=0.99), run(throughput=200, goodput=0.9))
    found = score(runs)
    assert (found.value, found.kept, found.run) == (90, True, runs[1])
    broken = score((run(throughput=100, goodput=0.5), run(throughput=60, goodput=0.8)))
    assert not broken.kept
    assert broken.value == pytest.approx(60 * 0.64), "the least broken load counts where none keeps it"


def test_without_an_slo_answers_count_and_of_generators_tokens() -> None:
    assert score((run(succeeded=100),)).kept
    assert not score((run(succeeded=98),)).kept
    assert score((run(throughput=10, tokens_per_second=500.0),)).value == 500


def test_at_a_given_rate_settings_that_hold_it_are_told_apart_by_their_latency() -> None:
    slow, quick, missing = (
        score((run(rate=50.0, p99=p99, goodput=goodput),)) for p99, goodput in ((80, 1.0), (20, 0.995), (5, 0.9))
    )
    assert quick.value > slow.value > missing.value
    assert quick.figure > slow.figure


def trial(label: str, *runs: Run, state: State = "complete", reason: str = "") -> Trial:
    return Trial(label, {"instances": 1}, state, runs, reason)


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


def rounds(*pairs: tuple[float, float], goodput: tuple[float, float] = (1.0, 1.0)) -> list[Run]:
    """(published, new) requests a second, round by round."""
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
def test_anything_else_is_not_proven(pairs: Sequence[tuple[float, float]]) -> None:
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
    """Three rounds of candidates with 100 and `new` requests a second; the latter gets the round's number."""

    def candidate(label: str, throughput: Callable[[Session, int], float]) -> Candidate:
        @contextmanager
        def opened_candidate(session: Session) -> Iterator[MeasureCase]:
            yield lambda case, number: run(label, throughput(session, number), round=number)

        return Candidate(label, opened_candidate)

    case = Case(Closed(4), MeasureSpec(RequestSet((), ""), LoadLimits(seconds=1.0)))
    return prove([candidate(PUBLISHED, lambda *_: 100.0), candidate("new", new)], [case], 3, session, until)


def test_both_are_measured_in_turn_in_new_rounds() -> None:
    proof = proved(lambda *_: 130.0, Session())
    turns = [(each.subject.label == "new", each.round) for each in proof.runs]
    assert turns == [(False, 1), (True, 1), (True, 2), (False, 2), (False, 3), (True, 3)]
    assert proof.proven


def test_one_that_fails_in_between_proves_nothing() -> None:
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


# The budget


@pytest.mark.parametrize("total", [30.0, 60.0, 600.0, 3600.0])
@pytest.mark.parametrize("loads", [1, 3])
def test_a_budget_holds_two_trials_and_the_proof(total: float, loads: int) -> None:
    found = budget([run(throughput=1000)] * loads, overhead=3.0, margin=0.3, total=total, rounds=3)
    assert FIRST <= found.seconds <= LONGEST
    assert found.least <= total or found.seconds == FIRST
    assert found.proof + 2 * (found.overhead + sum(map(found.measurement, range(3)))) < found.least


def test_slow_requests_lengthen_the_measurements_where_the_budget_allows_it() -> None:
    slow, slower = [run(throughput=20.0)], [run(throughput=0.1)]
    assert budget(slow, 3.0, 0.3, 600.0, 3).rungs[0] == pytest.approx(1.11, abs=0.1)
    assert budget(slow, 3.0, 0.3, 60.0, 3).least <= 60
    assert budget(slower, 3.0, 0.3, 6000.0, 3).seconds == SLOW_LONGEST


# The search


@pytest.mark.slow
def test_the_search_comes_close_to_the_best_settings_and_gives_up_poor_ones_early(tmp_path: Path) -> None:
    server = Server()
    trials = searched(tmp_path / "s.db", 40, server=server)
    assert (trials[0].label, trials[0].settings, trials[0].state) == (PUBLISHED, SPACE.old, "complete")
    assert [seconds for _, _, seconds in server.measured[:3]] == [1.0, 3.0, 9.0]
    full = [each for each in trials if each.state == "complete"]
    top = max(full, key=lambda each: score(each.runs).value)
    assert capacity(top.settings) >= 0.97 * 404
    assert len({str(each.settings) for each in trials}) == 40, "no settings are measured twice"
    pruned = [each.label for each in trials if each.state == "pruned"]
    assert len(pruned) > 15
    lengths = {label: [s for other, _, s in server.measured if other == label] for label in pruned}
    assert all(seconds in ([1.0], [1.0, 3.0]) for seconds in lengths.values())


@pytest.mark.slow
def test_the_same_seed_searches_the_same(tmp_path: Path) -> None:
    one, two, other = (searched(tmp_path / name, 4, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert [each.settings for each in one] == [each.settings for each in two]
    assert [each.settings for each in one] != [each.settings for each in other]


def test_a_search_ends_with_the_choices_or_after_so_many_trials(tmp_path: Path) -> None:
    assert len(searched(tmp_path / "all.db", 100, space=SMALL)) == SMALL.size == 4
    server = Server()
    with study_in(tmp_path / "s.db", again=False) as study:
        begin(study, server)
        assert len(list(search(study, BUDGET, FOREVER, server.opened, max_trials=3))) == 2


def test_a_trial_that_does_not_start_is_recorded_and_the_search_goes_on(tmp_path: Path) -> None:
    trials = searched(tmp_path / "s.db", 9, space=SMALL, server=Server({"instances": 2}))
    failed = [(each.settings["instances"], each.reason) for each in trials if each.state == "failed"]
    assert failed == [(2, "the model does not load: no room")] * 2


def test_what_is_published_must_be_measurable(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="does not load"), study_in(tmp_path / "s.db", SMALL) as study:
        begin(study, Server(broken={"instances": 1}))


def test_trials_end_with_the_time(tmp_path: Path) -> None:
    server = Server()
    with study_in(tmp_path / "s.db", again=False) as study:
        begin(study, server)
        shortest = BUDGET.overhead + BUDGET.measurement(0) + BUDGET.proof
        assert list(search(study, BUDGET, time.monotonic() + shortest - 0.2, server.opened)) == []
        one = list(islice(search(study, BUDGET, time.monotonic() + shortest + 2, server.opened), 1))
    assert [each.state for each in one] == ["pruned"], "there was no time for its longer measurements"


def test_an_interrupted_measurement_is_no_trial_and_comes_first_next_time(tmp_path: Path) -> None:
    server, path = Server(), tmp_path / "s.db"
    searched(path, 1, space=SMALL, server=server)
    with study_in(path, SMALL) as study:
        trials = search(study, BUDGET, FOREVER, server.interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(trials)
        assert len(study.trials) == 1
    with study_in(path, SMALL) as study:
        found = next(search(study, BUDGET, FOREVER, server.opened))
    assert found.settings == server.measured[3][1]


# The file


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s.db"
    before = searched(path, 6)
    after = searched(path, 4)
    assert after[:6] == before
    assert [each.label for each in after] == [PUBLISHED, *(f"trial {n}" for n in range(1, 10))]
    assert len({str(each.settings) for each in after}) == 10


def test_a_finished_search_begins_anew_unless_its_file_was_named(tmp_path: Path) -> None:
    with study_in(path := tmp_path / "s.db", again=False) as study:
        begin(study, Server())
    for again, known in ((True, 1), (False, 0)):
        with study_in(path, again=again) as study:
            assert len(study.trials) == known


def test_other_models_loads_and_choices_are_other_searches_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    searched(path, 3)
    for identity, space in (({"model": "n"}, SPACE), (IDENTITY, SMALL)):
        with opened(path, identity, space, 0, again=True) as study:
            assert study.trials == []
    assert len(searched(path, 0)) == 3


def test_a_file_that_can_not_be_used_is_refused(tmp_path: Path) -> None:
    other, busy = tmp_path / "other.db", tmp_path / "busy.db"
    other.write_text("something else, that is long enough to be looked at as a database " * 100)
    refusals = (
        (other, "not a study that can be used"),
        (other / "s.db", "can't be written"),
        (busy, "Another hfx tune"),
    )
    with study_in(busy):
        for path, message in refusals:
            with pytest.raises(UsageError, match=message), study_in(path):
                pass
