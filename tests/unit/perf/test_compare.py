"""Comparisons: options, alternating candidates, result files of several machines, and the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.errors import LoadFailed, ServerError, UsageError
from hfx.perf.compare.candidates import Candidate, Case, Measure, Session
from hfx.perf.compare.comparison import compare, merge, read_results, result_of
from hfx.perf.compare.kinds import label_of, parse_names, parse_targets, parse_variants
from hfx.perf.load import Closed, LoadLimits, Request, RequestSet
from hfx.perf.measuring import MeasureSpec
from hfx.perf.report.tables import comparison_tables
from hfx.perf.results import Run, read_result, write_result
from tests.rigs.files.perf_runs import MACHINE, result, run

REQUESTS = RequestSet((Request({"text_input": ("a",)}),), "one text")
CASES = [Case(Closed(callers), MeasureSpec(REQUESTS, LoadLimits(requests=1))) for callers in (1, 2)]
HUGE = 1 << 60  # bytes


# What the options name


def test_names_and_targets_of_a_comparison_are_parsed() -> None:
    assert parse_names("devices", "cpu, gpu") == ["cpu", "gpu"]
    assert parse_names("precisions", "fp32,int8,other-model") == ["fp32", "int8", "other-model"]
    targets = parse_targets(["cpu=127.0.0.1:8001", "new=host:9001"], "m")
    assert (targets["cpu"].grpc_url, targets["cpu"].device, targets["cpu"].model) == ("127.0.0.1:8001", "cpu", "m")
    assert targets["new"].device == ""


def test_variants_are_every_combination() -> None:
    expected = [{"max_queue_delay": delay, "instances": count} for delay in (0, 500) for count in (1, 2)]
    assert parse_variants(["max_queue_delay=0,500us", "instances=1,2"]) == expected
    assert parse_variants(["max_queue_delay=0,500us,instances=1,2"]) == expected
    assert label_of(expected[2]) == "max_queue_delay=500us, instances=1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("m", "What is to be compared?"),
        ("m --devices cpu,gpu --precisions int8", "--devices and --precisions exclude each other."),
        ("m n --devices cpu", "One model at a time, not m n."),
        ("a.json", "One file has nothing to be compared with."),
        ("a.json a.json", "A file is given twice."),
        ("a.json m", "Result files are compared with result files."),
        ("a.json b.json --devices cpu", "Result files are compared with result files."),
        ("a.json b.json", "a.json can't be read: No such file or directory."),
        ("m --devices cpu,tpu", "--devices 'cpu,tpu' can't be compared."),
        ("m --devices cpu,cpu", "--devices 'cpu,cpu' can't be compared."),
        ("m --precisions fp32,fp32", "--precisions 'fp32,fp32' can't be compared."),
        ("m --devices cpu --price cpu=free", "--price 'cpu=free' is not a price per hour."),
        ("m --devices cpu --price tpu=1/h", "--price names 'tpu', which is not compared."),
        ("m --precisions fp32,int8 --price int4=1/h", "--price names 'int4', which is not compared."),
        ("m --devices cpu --checkpoint x", "--checkpoint is about --precisions."),
        ("m --devices cpu --max-drop 0.1", "--max-drop is about --precisions."),
        ("m --target cpu", "--target 'cpu' is not a server."),
        ("m --target =host:1", "--target '=host:1' is not a server."),
        ("m --target cpu=a:1 --target cpu=b:1", "--target gives 'cpu' twice."),
        ("m --target cpu=http://a:1", "http://a:1 is an HTTP address."),
        ("m --variants instances=1", "--variants makes 1 variants."),
        ("m --variants 4", "--variants '4' names no setting."),
        ("m --variants instances=1 --variants instances=2", "--variants names instances twice."),
        ("m --variants colour=red,blue", "There is no setting 'colour'."),
        ("m --variants slots=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "--variants makes 17 variants."),
        ("m --devices cpu --output /nowhere/x.json", "/nowhere/x.json can't be written"),
    ],
)
def test_invalid_options_of_perf_compare_are_one_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["perf", "compare", *words.split()]) == 2
    output = capsys.readouterr()
    assert f"Error: {said}" in output.err and output.out == ""


# Candidates in turn


class Stage:
    """Candidates that log when they are opened, measured and closed, and the notes about them."""

    def __init__(self, session: Session | None = None) -> None:
        self.events: list[str] = []
        self.notes: list[str] = []
        self.session = session or Session()

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

    def runs(self, *candidates: Candidate, cases: int = 2, rounds: int = 2) -> Iterator[Run]:
        return compare(candidates, CASES[:cases], rounds, self.notes, self.session)


def test_candidates_are_open_together_and_alternate_under_each_load() -> None:
    stage = Stage()
    runs = [*stage.runs(*map(stage.candidate, "abc"), rounds=3)]
    assert "".join(each.subject.label for each in runs) == "abcbcacab" * 2, "each goes first as often as the others"
    opened, closed = ["open a", "open b", "open c"], ["close c", "close b", "close a"]
    assert (stage.events[:4], stage.events[-3:], stage.notes) == ([*opened, "a10"], closed, [])


def test_a_candidate_that_cannot_be_opened_is_named_without_figures() -> None:
    stage = Stage()
    candidates = [stage.candidate("gpu", broken="no GPU\nhere"), stage.candidate("cpu")]
    found = result_of("t", "c", [*stage.runs(*candidates)], stage.notes, candidates)
    assert found.notes == ("gpu was not run: no GPU here.",)
    assert {each.subject.label for each in found.runs} == {"cpu"}
    assert found.base == "cpu"
    with pytest.raises(LoadFailed, match="No candidate could be measured:\ngpu was not run: no GPU here"):
        result_of("t", "c", [], stage.notes, candidates)


def test_a_candidate_that_fails_under_load_keeps_its_measured_rounds() -> None:
    stage = Stage()
    runs = [*stage.runs(stage.candidate("a"), stage.candidate("b", failing_from=1))]
    loads = ("1 caller", "2 callers")
    assert stage.notes == [f"b, {load}, was measured in 1 round only: It is gone." for load in loads]
    assert len([each for each in runs if each.subject.label == "b"]) == 2


def test_candidates_too_large_for_memory_are_opened_one_at_a_time() -> None:
    stage = Stage()
    assert len([*stage.runs(stage.candidate("a", HUGE), stage.candidate("b", HUGE), cases=1)]) == 4
    turn = "open {0} {0}1{1} close {0}"
    turns = [turn.format(label, number) for label, number in (("a", 0), ("b", 0), ("b", 1), ("a", 1))]
    assert " ".join(stage.events) == " ".join(turns)
    assert len(stage.notes) == 1


def test_an_interrupt_closes_what_is_open() -> None:
    stage = Stage()
    runs = []
    for each in stage.runs(stage.candidate("a"), stage.candidate("b"), rounds=5):
        runs.append(each)
        stage.session.stop.set()
    assert len(runs) == 1
    assert stage.events[-2:] == ["close b", "close a"]


# Result files


def files(folder: Path) -> list[str]:
    cpu = result(run("m", 10.0, device="cpu"), run("m", 5.0, callers=2, device="cpu"))
    gpu = result(run("m", 100.0, device="gpu"), machine=replace(MACHINE, gpus=("H200", "H200")))
    write_result(cpu, folder / "one.json")
    write_result(gpu, folder / "two.json")
    return [str(folder / "one.json"), str(folder / "two.json")]


def test_files_of_two_machines_become_one_table_with_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--price", "cpu=$1/h", "--price", "gpu=$4/h", "--output", str(tmp_path / "both.json")]
    assert main(["perf", "compare", *files(tmp_path), *words]) == 0
    output = capsys.readouterr().out
    assert output.startswith("two holds 100 requests/s with 1 caller, 10.0× that of one under the same load.")
    assert "two is cheaper than one above 40 requests/s." in output
    merged = read_result(tmp_path / "both.json")
    assert [each.subject.label for each in merged.runs] == ["one", "one", "two"]
    assert merged.base == "one" and merged.runs[0].cost and merged.runs[0].cost.currency == "$"
    machine = "Test CPU, 2 cores, 8.00 GiB"
    assert merged.details["machines"] == {"one": machine, "two": f"{machine}, 2 x H200"}


def test_equal_loads_of_two_files_are_compared() -> None:
    first, second = ([run(label, rate), run(label, 2 * rate, callers=4)] for label, rate in (("cpu", 10), ("gpu", 50)))
    table = comparison_tables(merge({"a": result(*first), "b": result(*second)}))[0]
    ratios = {(row[0], row[1]): row[table.columns.index("requests/s / cpu")] for row in table.rows}
    assert ratios["1 caller", "gpu"] == ratios["4 callers", "gpu"] == "5.00×"


def test_labels_that_several_files_have_get_the_name_of_the_file() -> None:
    one, two = result(run("fp32"), run("int8")), result(run("int8"), run("int4"))
    assert [each.subject.label for each in merge({"a": one, "b": two}).runs] == ["fp32", "a: int8", "b: int8", "int4"]


def test_loads_with_different_data_have_no_ratio() -> None:
    merged = merge({"a": result(run("a", data="short")), "b": result(run("b", data="long"))})
    assert [each.load.case for each in merged.runs] == ["short", "long"]
    assert not [name for table in comparison_tables(merged) for name in table.columns if "/ a" in name]
    assert any("loads differ" in note for note in merged.notes)


def test_files_with_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        write_result(result(run(name)), tmp_path / name / "r.json")
    assert len(read_results([tmp_path / "x/r.json", tmp_path / "y/r.json"])) == 2


def test_files_without_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="no run"):
        merge({"a": replace(result(run()), runs=()), "b": replace(result(run()), runs=())})
