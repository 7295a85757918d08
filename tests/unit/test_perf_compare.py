"""Comparisons: what the options name, candidates in turn, result files of several machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hfx.errors import LoadFailed, ServerError, UsageError
from hfx.perf.compare.candidates import Candidate, Case, Measure, Session, parse_devices, parse_targets
from hfx.perf.compare.comparison import compare, merge, read_results, result_of
from hfx.perf.compare.kinds import label_of, parse_precisions, parse_variants
from hfx.perf.load import Closed, Limits, Request, RequestSet
from hfx.perf.measuring import MeasureSpec
from hfx.perf.report.tables import comparison_tables
from hfx.perf.results import Run, write_result
from tests.unit.perf_runs import MACHINE, result, run

REQUESTS = RequestSet((Request({"text_input": ("a",)}),), "one text")
CASES = [Case(Closed(callers), MeasureSpec(REQUESTS, Limits(requests=1))) for callers in (1, 2)]
HUGE = 1 << 60  # bytes


# What the options name


def test_devices_precisions_and_servers() -> None:
    assert parse_devices("cpu, gpu") == ("cpu", "gpu")
    assert parse_precisions("fp32,int8,other-model") == ("fp32", "int8", "other-model")
    targets = parse_targets(["cpu=127.0.0.1:8001", "new=host:9001"], "m")
    assert (targets["cpu"].grpc_url, targets["cpu"].device, targets["cpu"].model) == ("127.0.0.1:8001", "cpu", "m")
    assert targets["new"].device == ""


def test_what_can_not_be_compared_is_refused() -> None:
    for text in ("cpu,tpu", "cpu,cpu", ""):
        with pytest.raises(UsageError, match="can't be compared"):
            parse_devices(text)
    with pytest.raises(UsageError):
        parse_precisions("fp32,fp32")
    for texts in (["cpu"], ["=host:1"], ["cpu=a:1", "cpu=b:1"], ["cpu=http://a:1"]):
        with pytest.raises(UsageError):
            parse_targets(texts, "m")


def test_variants_are_every_combination() -> None:
    expected = [{"max_queue_delay": delay, "instances": count} for delay in (0, 500) for count in (1, 2)]
    assert parse_variants(["max_queue_delay=0,500us", "instances=1,2"]) == expected
    assert parse_variants(["max_queue_delay=0,500us,instances=1,2"]) == expected
    assert parse_variants(["max_batch=8,16"]) == [{"max_batch_size": 8}, {"max_batch_size": 16}]
    assert label_of(expected[2]) == "max_queue_delay=500us, instances=1"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["instances=1"], "makes 1 variants"),
        (["4"], "names no setting"),
        (["instances=1", "instances=2"], "twice"),
        (["colour=red,blue"], "no setting 'colour'"),
        (["instances=1,2s"], "no value of instances"),
        (["slots=" + ",".join(map(str, range(1, 20)))], "makes 19 variants"),
    ],
)
def test_variants_that_can_not_be_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_variants(texts)


# Candidates in turn


class Stage:
    """Candidates that log when they are opened, measured and closed."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def candidate(self, label: str, memory: int = 0, broken: str = "", failing_from: int = 99) -> Candidate:
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

        return Candidate(label, opened, memory)


def test_all_are_open_at_once_and_take_turns_under_each_load() -> None:
    stage, notes = Stage(), list[str]()
    runs = [*compare([stage.candidate("a"), stage.candidate("b")], CASES, 2, notes)]
    assert " ".join(stage.events) == "open a open b a10 b10 b11 a11 a20 b20 b21 a21 close b close a"
    assert len(runs) == 8 and notes == []


def test_each_of_three_goes_first_once() -> None:
    stage = Stage()
    runs = [*compare([stage.candidate(label) for label in "abc"], CASES[:1], 3, [])]
    assert "".join(each.subject.label for each in runs) == "abcbcacab"


def test_one_that_can_not_be_opened_is_named_and_has_no_number() -> None:
    stage, notes = Stage(), list[str]()
    candidates = [stage.candidate("gpu", broken="no GPU\nhere"), stage.candidate("cpu")]
    found = result_of("t", "c", [*compare(candidates, CASES, 2, notes)], notes, candidates)
    assert found.notes == ("gpu was not run: no GPU here",)
    assert {each.subject.label for each in found.runs} == {"cpu"}
    assert found.base == "cpu"


def test_one_that_fails_under_load_is_named_with_the_load_and_keeps_its_rounds() -> None:
    stage, notes = Stage(), list[str]()
    runs = [*compare([stage.candidate("a"), stage.candidate("b", failing_from=1)], CASES, 2, notes)]
    assert notes == [f"b, {load}, was measured in 1 round only: It is gone." for load in ("1 caller", "2 callers")]
    assert len([each for each in runs if each.subject.label == "b"]) == 2


def test_what_does_not_fit_into_memory_together_is_opened_for_its_turn() -> None:
    stage, notes = Stage(), list[str]()
    runs = [*compare([stage.candidate("a", HUGE), stage.candidate("b", HUGE)], CASES[:1], 2, notes)]
    assert " ".join(stage.events) == "open a a10 close a open b b10 close b open b b11 close b open a a11 close a"
    assert len(runs) == 4 and len(notes) == 1


def test_nothing_measured_is_an_error_with_all_reasons() -> None:
    with pytest.raises(LoadFailed, match=r"No candidate could be measured:\na was not run: No\."):
        result_of("t", "c", [], ["a was not run: No."], [])


def test_an_interrupt_closes_what_is_open() -> None:
    stage, session, runs = Stage(), Session(), list[Run]()
    for each in compare([stage.candidate("a"), stage.candidate("b")], CASES, 5, [], session):
        runs.append(each)
        session.stop.set()
    assert len(runs) == 1
    assert stage.events[-2:] == ["close b", "close a"]


# Result files


def test_equal_loads_of_two_files_meet() -> None:
    cpu = result(run("cpu", 10.0), run("cpu", 20.0, callers=4))
    gpu = result(run("gpu", 50.0), run("gpu", 80.0, callers=4), machine=replace(MACHINE, gpus=("H200", "H200")))
    merged = merge({"a": cpu, "b": gpu}, "hfx perf compare a.json b.json")
    assert (merged.kind, merged.base, len(merged.notes)) == ("compare", "cpu", 1)
    assert merged.details["machines"] == {
        "a": "Test CPU, 2 cores, 8.00 GiB",
        "b": "Test CPU, 2 cores, 8.00 GiB, 2 x H200",
    }
    table = comparison_tables(merged)[0]
    ratios = {(row[0], row[1]): row[table.columns.index("requests/s / cpu")] for row in table.rows}
    assert ratios["1 caller", "gpu"] == "5.00×" and ratios["4 callers", "gpu"] == "4.00×"


def test_labels_that_several_files_have_get_the_name_of_the_file() -> None:
    one, two = result(run("fp32"), run("int8")), result(run("int8"), run("int4"))
    assert [each.subject.label for each in merge({"a": one, "b": two}).runs] == ["fp32", "a: int8", "b: int8", "int4"]
    alike = result(run("m"))
    assert [each.subject.label for each in merge({"old": alike, "new": alike}).runs] == ["old", "new"]


def test_other_data_is_another_case_and_has_no_ratio() -> None:
    merged = merge({"a": result(run("a", data="short")), "b": result(run("b", data="long"))})
    assert [each.load.case for each in merged.runs] == ["short", "long"]
    assert not [name for table in comparison_tables(merged) for name in table.columns if "/ a" in name]
    assert any("loads differ" in note for note in merged.notes)


def test_files_with_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        write_result(result(run(name)), tmp_path / name / "r.json")
    assert len(read_results([tmp_path / "x/r.json", tmp_path / "y/r.json"])) == 2
    with pytest.raises(UsageError, match="twice"):
        read_results([tmp_path / "x/r.json", tmp_path / "x/../x/r.json"])


def test_files_without_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="no run"):
        merge({"a": replace(result(run()), runs=()), "b": replace(result(run()), runs=())})
