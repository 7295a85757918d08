"""What `bench.generate` makes of figures: whose way stands for hfx, which peer is the best one, goals, and goodput."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench import generation_report
from bench.arrivals import STEPS, USUAL_SHARE, Point, Search, Served, goodput
from bench.generation_cases import Batch, Load
from bench.generation_figures import Result
from bench.generation_goals import Standing, fastest_of_ours, goals, standing
from bench.generation_load import Contender, reference
from bench.generation_peers import CT2, GENAI8, ORT, OV4_HEAD, OV8, WAYS
from bench.generation_works import Settings, _takes_part

ONE, EIGHT = "8 to 50 tokens, B=1", "8 to 50 tokens, B=8"
OPENVINO, ONNXRUNTIME = "hfx on OpenVINO", "hfx on ONNX Runtime"


def result(*figures: tuple[str, str, str, tuple[float, ...]]) -> Result:
    """Milliseconds of (way, precision, case), a round each."""
    found = Result()
    for way, precision, case, rounds in figures:
        for turn, value in enumerate(rounds):
            found.add((way, precision, case, "ms"), turn, value)
    return found


def measured(found: Result, work: str = "gpt2") -> dict[str, float | None]:
    """The goals' words -> what was measured."""
    return {goal.words: goal.value for goal in goals({work: found})}


class TestWhoStands:
    def test_the_runner_with_the_least_time(self) -> None:
        found = result((OPENVINO, "int8", ONE, (90, 100)), (ONNXRUNTIME, "int8", ONE, (120, 80)))
        assert fastest_of_ours(found, ONE, "int8") == (OPENVINO, "int8")
        assert fastest_of_ours(found, ONE, "int4") is None

    def test_another_one_in_another_case(self) -> None:
        found = result(
            (OPENVINO, "int8", ONE, (100,)),
            (ONNXRUNTIME, "int8", ONE, (90,)),
            (OPENVINO, "int8", EIGHT, (150,)),
            (ONNXRUNTIME, "int8", EIGHT, (250,)),
        )
        assert fastest_of_ours(found, ONE, "int8") == (ONNXRUNTIME, "int8")
        assert fastest_of_ours(found, EIGHT, "int8") == (OPENVINO, "int8")

    def test_the_best_peer_of_the_precision(self) -> None:
        found = result(
            (OPENVINO, "int8", ONE, (100,)),
            ("CTranslate2", "int8", ONE, (300,)),
            ("OpenVINO GenAI", "int8", ONE, (150,)),
            ("OpenVINO GenAI", "int4", ONE, (50,)),
        )
        assert standing(found, ONE, "int8") == Standing(ONE, (OPENVINO, "int8"), ("OpenVINO GenAI", "int8"), 1.5)
        assert standing(found, ONE, "int4") is None

    def test_a_peer_by_name_in_whichever_of_its_settings_is_faster(self) -> None:
        found = result(
            (OPENVINO, "int8", ONE, (100,)),
            ("CTranslate2", "int8", ONE, (110,)),
            ("OpenVINO by optimum-intel", "int8", ONE, (250,)),
            ("OpenVINO by optimum-intel, bf16", "int8", ONE, (200,)),
        )
        best = standing(found, ONE, "int8", "OpenVINO by optimum-intel")
        assert best is not None and best.peer[0] == "OpenVINO by optimum-intel, bf16" and best.ratio == 2.0

    def test_ratios_are_of_rounds_that_both_took_part_in(self) -> None:
        found = result((OPENVINO, "int8", ONE, (100, 200, 210)), ("CTranslate2", "int8", ONE, (300,)))
        best = standing(found, ONE, "int8")
        assert best is not None and best.ratio == 3.0


class TestGoals:
    def test_words_name_the_ways_that_were_compared(self) -> None:
        found = result(
            (f"{OPENVINO}, head int4", "int4", ONE, (50,)),
            (ONNXRUNTIME, "int4", ONE, (60,)),
            ("OpenVINO GenAI", "int4", ONE, (70,)),
            ("OpenVINO GenAI, head int4", "int4", ONE, (65,)),
        )
        words = f"gpt2 {ONE}: {OPENVINO}, head int4 (int4) is x times as fast as OpenVINO GenAI, head int4 (int4)"
        assert measured(found)[words] == 1.3

    def test_a_batch_has_a_goal_in_each_precision(self) -> None:
        found = result((OPENVINO, "int8", EIGHT, (100,)), ("OpenVINO GenAI", "int8", EIGHT, (105,)))
        kept = {words: value for words, value in measured(found).items() if "CTranslate2" not in words}
        assert list(kept.values()) == [1.05, None]
        assert list(kept)[1] == f"gpt2 {EIGHT}: hfx (int4) is x times as fast as the best peer"

    def test_the_precision_that_is_furthest_ahead(self) -> None:
        case, intel = "64 to 64 tokens, B=1", "OpenVINO by optimum-intel"
        found = result(
            (OPENVINO, "int8", case, (100,)),
            (ONNXRUNTIME, "int4", case, (50,)),
            (intel, "int8", case, (160,)),
            (intel, "int4", case, (90,)),
        )
        words = f"t5 {case}: {ONNXRUNTIME} (int4) is x times as fast as {intel} (int4)"
        assert measured(found, "t5")[words] == 1.8

    def test_a_peer_in_another_precision_where_the_goal_says_so(self) -> None:
        found = result((OPENVINO, "int4", ONE, (50,)), ("CTranslate2", "int8", ONE, (300,)))
        assert measured(found)[f"gpt2 {ONE}: {OPENVINO} (int4) is x times as fast as CTranslate2 (int8)"] == 6.0

    @pytest.mark.parametrize(
        ("ours", "peer", "at_least", "ratio"),
        [(24.0, 20.0, False, 1.2), (24.0, 20.0, True, None), (24.0, 0.0, False, None)],
    )
    def test_goodput_against_a_peer_whose_own_is_known(
        self, ours: float, peer: float, at_least: bool, ratio: float | None
    ) -> None:
        ways = {
            OPENVINO: {"peer": False, "goodput": ours, "at_least": True},
            ONNXRUNTIME: {"peer": False, "goodput": 10.0, "at_least": False},
            "OpenVINO GenAI": {"peer": True, "goodput": peer, "at_least": at_least},
        }
        found = Result(facts={"distilgpt2": {"ways": ways}})
        assert measured(found, "arrivals") == {
            f"distilgpt2: goodput of {OPENVINO}, times that of OpenVINO GenAI at equal p99": ratio
        }

    def test_memory_of_each_runner(self) -> None:
        found = Result()
        for way, after in ((OPENVINO, 300), (ONNXRUNTIME, 150), ("CTranslate2", 100)):
            found.add((way, "int8", EIGHT, "after"), 0, after)
            found.add((way, "int8", EIGHT, "pool"), 0, 25)
        assert list(measured(found, "memory").values()) == [2.0, 1.0]


def test_tables_show_hfx_beside_the_best_peer() -> None:
    found = result(
        (OPENVINO, "int8", ONE, (100,)), ("CTranslate2", "int8", ONE, (250,)), ("torch", "fp32", ONE, (900,))
    )
    found.machine = {"processor": "a processor", "cores": 2, "load_average": 0.0, "versions": {}}
    text = generation_report.render({"gpt2": found})
    assert f"| {ONE} | int8 | {OPENVINO} | 100 | CTranslate2 | 250 | 2.50 |" in text
    assert "| torch | fp32 | 900 | 900-900 | 1 | 55.6 | - | 9.00 |" in text


class TestWays:
    def test_both_runtimes_run_one_conversion(self) -> None:
        for name, ways in WAYS.items():
            files = {(way.files or way.name, way.precision): way.convert for way in ways}
            assert all(files[way.files or way.name, way.precision] is way.convert for way in ways), name
            assert len({(way.name, way.precision) for way in ways}) == len(ways), name

    @pytest.mark.parametrize(
        ("words", "chosen"),
        [
            ((), (OV8, OV4_HEAD, CT2, GENAI8)),
            (("hfx",), (OV8, OV4_HEAD)),
            (("hfx on openvino int8", "genai"), (OV8, GENAI8)),
        ],
    )
    def test_chosen_by_words(self, words: tuple[str, ...], chosen: tuple[Any, ...]) -> None:
        assert Settings(ways=words).chosen((OV8, OV4_HEAD, CT2, GENAI8)) == list(chosen)

    def test_slow_ones_have_one_round_and_no_large_batches(self) -> None:
        parts = [
            (rows, turn) for rows in (1, 32, 128) for turn in range(3) if _takes_part(ORT, Batch(rows, 8, 50), turn)
        ]
        assert parts == [(1, 0), (32, 0)]
        assert _takes_part(OV8, Batch(128, 8, 50), 2)


class Queue:
    """Serves one request after the other: p99 is 1 s up to `capacity` requests a second, and 5 s beyond."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.rates: list[float] = []

    def answer(self, load: Load) -> Served:
        self.rates.append(load.rate)
        return Served((1.0 if load.rate <= self.capacity else 5.0,) * load.count, load.rate, 0.0)


def search(way: Queue, capacity: float = 10.0) -> Search:
    return Search(way, Load(math.inf, 8), capacity, 1.0)  # type: ignore[arg-type] # in this process


class TestGoodput:
    @pytest.mark.parametrize(
        ("capacity", "rates"), [(100.0, [7, 10, 11.5, 12.25]), (9.0, [7, 10, 8.5, 9.25]), (1.0, [7, 4, 2.5, 1.75])]
    )
    def test_rates_come_nearer_to_the_bound(self, capacity: float, rates: list[float]) -> None:
        way = Queue(capacity)
        found = search(way)
        for _ in range(1 + len(STEPS)):
            found.next(2.0)
        assert way.rates == pytest.approx(rates)
        assert found.is_open(2.0) is (capacity == 100.0)

    def test_between_two_rates(self) -> None:
        found = search(Queue(9.0))
        for _ in range(1 + len(STEPS)):
            found.next(2.0)
        assert found.goodput(2.0) == pytest.approx(8.5 + 0.25 * 0.75)  # p99 1 s at 8.5, 5 s at 9.25
        assert found.goodput(0.5) == 0.0

    def test_99_of_100_within(self) -> None:
        def served(late: int) -> Served:
            return Served((1.0,) * (100 - late) + (9.0,) * late, 1.0, 1.0)

        assert goodput([Point(1.0, served(1))], 2.0) == 1.0
        assert goodput([Point(1.0, served(2))], 2.0) == 0.0

    def test_the_reference_is_the_peer_that_does_most(self) -> None:
        def contender(title: str, rate: float, peer: bool) -> Contender:
            return Contender(title, Served((1.0,), rate, 0.0), search(Queue(1.0)), peer, False)

        ours, slow, fast = contender("hfx", 9.0, False), contender("slow", 1.0, True), contender("fast", 2.0, True)
        assert reference([ours, slow, fast]) is fast
        assert reference([ours]) is ours
        assert reference([]) is None


def test_the_usual_rate_comes_first_whatever_the_bound() -> None:
    way = Queue(1.0)
    search(way).next(0.0)
    assert way.rates == [pytest.approx(USUAL_SHARE * 10.0)]
