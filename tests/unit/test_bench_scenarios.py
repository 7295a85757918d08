"""The table of scenarios is whole, its texts are the same for everybody, and what follows from runs is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.checkpoints import BY_NAME
from bench.scenarios import SCENARIOS, Options, scenario_table, verdicts
from bench.scenarios.running import planned
from bench.scenarios.scenario import Scenario, key_of, quick
from bench.scenarios.table import BURST, CLASSIFY, LABELS, MLSERVER_BURST_SCENARIO, RATE
from bench.scenarios.texts import Data, Texts, asks
from bench.scenarios.verdicts import OWN, grouped, pace
from bench.scenarios.ways import batch, checked
from hfx.errors import LoadFailed, UsageError
from hfx.names import MAX_TOKENS, MIN_TOKENS, TEXT_INPUT
from hfx.perf.load import Closed
from hfx.perf.report.figures import FIGURES
from hfx.perf.results import Requests
from tests.unit import scenario_runs
from tests.unit.scenario_runs import rounds, run

EACH = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)


def words(text: str) -> int:
    return len(text.split())


@EACH
def test_a_scenario_has_goals_about_cases_and_ways_of_its_own(scenario: Scenario) -> None:
    labels = {"", *(way.label for way in scenario.peers)}
    keys = {case.key for case in scenario.cases}
    assert scenario.goals and all(goal.case in keys and goal.against in labels for goal in scenario.goals)
    assert all((goal.least is None) != (goal.most is None) for goal in scenario.goals)
    assert all(goal.figure in FIGURES or goal.figure in OWN for goal in scenario.goals)
    assert all((goal.relation == "value") == (not goal.against) for goal in scenario.goals)


@EACH
def test_a_scenario_has_a_known_shape_and_known_peers(scenario: Scenario) -> None:
    from bench.peers import PEERS

    assert scenario.model.shape in BY_NAME
    assert {way.name for way in scenario.peers} <= set(PEERS)


@EACH
def test_cases_differ_in_name_or_size(scenario: Scenario) -> None:
    assert len({case.key for case in scenario.cases}) == len(scenario.cases)
    assert len({case.words for case in scenario.cases}) == len(scenario.cases)


@EACH
def test_callers_and_rows_of_a_peer_are_as_many(scenario: Scenario) -> None:
    for case in scenario.cases:
        if isinstance(case.plan, Closed):
            assert case.plan.callers == case.rows


@EACH
def test_a_run_is_found_again_by_its_load(scenario: Scenario) -> None:
    for case in scenario.cases:
        assert key_of(run(case, scenario.label, 1.0).load) == case.key
        if scenario.peers and not scenario.peers[0].served:
            assert key_of(run(case, scenario.peers[0].label, 1.0).load) == case.key


@EACH
def test_published_figures_name_their_source_and_are_in_no_ratio(scenario: Scenario) -> None:
    assert all(each.source for each in scenario.published)
    without = replace(scenario, published=())
    runs = scenario_runs.everything(scenario)
    assert verdicts(scenario, runs) == verdicts(without, runs)
    assert scenario_table(scenario, runs) == scenario_table(without, runs)
    assert not {each.subject for each in scenario.published} & {run.subject.label for run in runs}


@EACH
def test_a_smoke_run_asks_for_little(scenario: Scenario) -> None:
    small = quick(scenario)
    assert small.rounds == 1 and len({case.key for case in small.cases}) == len(small.cases) <= len(scenario.cases)
    assert all(case.rows <= 4 and (case.seconds or 0) < 0.5 and (case.new_tokens or 0) <= 4 for case in small.cases)


def test_all_scenarios_of_the_issue_are_there() -> None:
    assert set(SCENARIOS) == {"mlserver-burst", "mlserver-50rps", "billsum", "faq", "classify", "chat-ragged"}


def test_the_recorded_figures_are_those_of_the_serving_benchmark() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks-serving.md").read_text(encoding="utf-8")
    recorded = next(line for line in page.splitlines() if "recorded, another run) | 150" in line)
    values = {each.figure: each.value for each in SCENARIOS["mlserver-50rps"].published}
    assert all(f"| {value:g} |" in recorded for value in values.values())
    assert SCENARIOS["mlserver-burst"].published[0].value == 21.4


# texts


def test_a_text_is_of_as_many_tokens_as_were_asked_for() -> None:
    found = asks(Texts("lengths", lengths="fixed:16"), 5, {}, words, None)
    assert [words(str(ask.inputs[TEXT_INPUT][0])) for ask in found.items] == [16] * 5


def test_an_answer_has_neither_fewer_nor_more_tokens_than_asked_for() -> None:
    found = asks(Texts("same", text="A"), 3, {MAX_TOKENS: 50}, words, None)
    assert found.items[0].inputs == {TEXT_INPUT: ("A",), MAX_TOKENS: (50,), MIN_TOKENS: (50,)}


def test_lengths_of_answers_are_drawn_for_each_request_and_the_same_again() -> None:
    drawn = Texts("lengths", lengths="lognormal:10,0.5,40", answers="lognormal:10,0.5,40")
    first, second = (asks(drawn, 20, {}, words, None) for _ in range(2))
    lengths = [ask.inputs[MAX_TOKENS] for ask in first.items]
    assert first == second and len(set(lengths)) > 3
    assert all(ask.inputs[MAX_TOKENS] == ask.inputs[MIN_TOKENS] for ask in first.items)


def test_documents_of_a_file_are_cut_to_the_length_of_the_scenario(tmp_path: Path) -> None:
    path = tmp_path / "bills.csv"
    path.write_text("title,text\nOne," + "word " * 50 + "\nTwo,short text\n")
    found = asks(Texts("documents", lengths="fixed:20"), 2, {}, words, Data(path, "text"))
    assert [words(str(ask.inputs[TEXT_INPUT][0])) for ask in found.items] == [20, 2]
    assert "the first 20 tokens" in found.words


def test_a_peer_gets_the_first_texts_of_the_load_and_its_settings() -> None:
    case = SCENARIOS["billsum"].cases[1]
    texts = asks(Texts("lengths", lengths="fixed:8"), 6, case.settings, words, None)
    found = batch(case, texts)
    assert found.texts == tuple(str(ask.inputs[TEXT_INPUT][0]) for ask in texts.items[:4])
    assert (found.new_tokens, found.beams, found.no_repeat_ngram) == (64, 4, 3)


# what follows from runs


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    case, scenario = BURST, MLSERVER_BURST_SCENARIO
    runs = [*rounds(case, scenario.label, (20.0, 60.0, 90.0)), *rounds(case, "mlserver bf16", (10.0, 20.0, 10.0))]
    found = {goal.words: goal for goal in verdicts(scenario, runs)}
    goal = found["512 at once: requests/s, in times of mlserver bf16"]
    assert (goal.value, goal.met) == (3.0, True)  # of 2, 3 and 9
    assert found["512 at once: requests/s, in times of ctranslate2 int8"].met is None


def test_what_the_server_adds_is_a_difference_round_by_round() -> None:
    case = LABELS[0]
    inside = "hfx int8 in process"
    runs = [*rounds(case, CLASSIFY.label, (1.0, 1.0), latency=0.004), *rounds(case, inside, (1.0, 1.0), latency=0.002)]
    goal = next(goal for goal in verdicts(CLASSIFY, runs) if goal.words.endswith(f"above {inside}") and goal.value)
    assert goal.value == pytest.approx(2.0, abs=0.01) and goal.met is False


def test_hfx_in_process_is_no_peer_to_be_faster_than() -> None:
    case = LABELS[0]
    runs = [*rounds(case, CLASSIFY.label, (30.0,)), *rounds(case, "hfx int8 in process", (10.0,))]
    table = scenario_table(CLASSIFY, [*runs, *rounds(case, "torch fp32", (10.0,))])
    assert {row[1]: row[-1] for row in table.rows} == {
        "hfx int8": "–", "hfx int8 in process": "–", "torch fp32": "3.00×",
    }  # fmt: skip


def test_the_pace_of_a_load_at_its_times_is_that_to_the_last_answer() -> None:
    made = replace(run(RATE, "hfx int8", 50.0), seconds=3.5, requests=Requests(140, 140))
    assert pace(made) == pytest.approx(40.0)
    assert pace(run(LABELS[0], "hfx int8", 33.0)) == 33.0


def test_rounds_stand_in_their_order() -> None:
    runs = list(reversed(rounds(BURST, "hfx int8", (1.0, 2.0, 3.0))))
    assert [each.round for each in grouped(runs)[BURST.key, "hfx int8"].runs] == [0, 1, 2]


# what is no measurement


def test_who_wrote_another_number_of_tokens_has_no_figures() -> None:
    made = run(BURST, "ctranslate2 int8", 1.0, tokens=[50, 49, 50])
    with pytest.raises(LoadFailed, match="49 tokens where 50 were asked for"):
        checked(made, BURST)
    assert checked(run(BURST, "ctranslate2 int8", 1.0, tokens=[50, 50]), BURST)


def test_a_load_with_failed_requests_has_no_figures() -> None:
    made = replace(run(BURST, "hfx int8", 1.0), requests=Requests(512, 511, errors={"ServerBusy": 1}))
    with pytest.raises(LoadFailed, match="1 of 512 requests failed"):
        checked(made, BURST)


def test_peers_are_left_out_by_name() -> None:
    assert [way.name for way in planned(CLASSIFY, Options(peers=("torch",))).peers] == ["torch"]
    assert planned(CLASSIFY, Options(peers=(), rounds=9)).rounds == 9
    with pytest.raises(UsageError, match="no peer mlserver"):
        planned(CLASSIFY, Options(peers=("mlserver",)))
