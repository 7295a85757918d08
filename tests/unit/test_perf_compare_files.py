"""Result files of two machines become one comparison: equal loads meet, what has no partner is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hfx.errors import UsageError
from hfx.perf.compare.files import merge, read_results, short_names
from hfx.perf.report.comparisons import comparison_table
from hfx.perf.results import write_result
from tests.unit.perf_compare_runs import MACHINE, result, run

ALWAYS = "The rounds of different files did not take turns: what the machines did meanwhile is in the ratios."
GPU = replace(MACHINE, processor="Other CPU", gpus=("H200", "H200"))


def test_labels_that_differ_stay_and_equal_loads_meet():
    cpu = result(run("cpu", 10.0), run("cpu", 20.0, callers=4))
    gpu = result(run("gpu", 50.0), run("gpu", 80.0, callers=4), machine=GPU)
    merged = merge({"a": cpu, "b": gpu}, "hfx perf compare a.json b.json")
    assert (merged.kind, merged.base, merged.command) == ("compare", "cpu", "hfx perf compare a.json b.json")
    assert merged.notes == (ALWAYS,)
    assert merged.details["machines"] == {
        "a": "Test CPU, 2 cores, 8 GiB",
        "b": "Other CPU, 2 cores, 8 GiB, 2 x H200",
    }
    table = comparison_table(merged)
    shown = {(row[0], row[1]): row[table.columns.index("requests/s / cpu")] for row in table.rows}
    assert shown[("1 caller", "gpu")] == "5.00×"
    assert shown[("4 callers", "gpu")] == "4.00×"


def test_the_same_label_becomes_the_device_where_that_tells_them_apart():
    merged = merge({"a": result(run("m", 1.0, device="cpu")), "b": result(run("m", 2.0, device="gpu"))})
    assert [each.subject.label for each in merged.runs] == ["cpu", "gpu"]
    assert merged.base == "cpu"


def test_the_same_label_on_the_same_device_becomes_the_name_of_the_file():
    one = result(run("m", 1.0, device="cpu"))
    assert [each.subject.label for each in merge({"old": one, "new": one}).runs] == ["old", "new"]


def test_of_several_labels_those_that_collide_are_told_apart():
    one, two = result(run("fp32", 1.0), run("int8", 2.0)), result(run("int8", 3.0), run("int4", 4.0))
    assert [each.subject.label for each in merge({"a": one, "b": two}).runs] == ["fp32", "a: int8", "b: int8", "int4"]


def test_a_load_without_a_partner_stays_and_is_said():
    one = result(run("cpu", 1.0), run("cpu", 2.0, callers=2))
    two = result(run("gpu", 3.0), run("gpu", 9.0, callers=64))
    merged = merge({"a": one, "b": two})
    assert merged.notes[1:] == (
        "a: 2 callers (texts) has no partner in b.",
        "b: 64 callers (texts) has no partner in a.",
    )
    assert len(merged.runs) == 4


def test_other_data_are_another_load():
    merged = merge({"a": result(run("cpu", 1.0)), "b": result(run("gpu", 1.0, data="long texts"))})
    assert "a: texts, 1 caller has no partner in b." in merged.notes
    assert not any("×" in cell for row in comparison_table(merged).rows for cell in row)


def test_what_else_differs_is_said_and_notes_keep_their_file():
    one = result(run("cpu", 1.0, slo="latency<1s", goodput=1.0), notes=("gpu was not run: none here",))
    two = result(run("gpu", 1.0, tool="locust"))
    notes = merge({"a": one, "b": two}).notes
    assert notes[0] == "a: gpu was not run: none here"
    assert "The load generators differ (a: builtin; b: locust)." in notes
    assert "The SLOs differ (a: latency<1s; b: none)." in notes


def test_files_are_read_strictly_and_twice_the_same_is_refused(tmp_path: Path):
    path = tmp_path / "a.json"
    write_result(result(run("cpu", 1.0)), path)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(UsageError, match="One file"):
        read_results([path])
    with pytest.raises(UsageError, match="twice"):
        read_results([path, tmp_path / "." / "a.json"])
    with pytest.raises(UsageError, match=r"b\.json is no result file"):
        read_results([path, tmp_path / "b.json"])


def test_files_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path):
    assert short_names([Path("/x/cpu/r.json"), Path("/x/gpu/r.json")]) == ["cpu/r", "gpu/r"]
    assert short_names([Path("/x/a.json"), Path("/x/b.json")]) == ["a", "b"]


def test_files_without_a_run_are_no_comparison():
    with pytest.raises(UsageError, match="no run"):
        merge({"a": result(), "b": result()})
