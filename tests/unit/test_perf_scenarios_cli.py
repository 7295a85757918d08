"""`hfx perf scenario` says what is wrong before it measures anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.perf.scenarios import SCENARIOS


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["perf", "scenario", *words]) == 2
    return capsys.readouterr().err


def test_the_list_shows_every_scenario_with_its_peers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "scenario", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["scenarios"]
    assert [each["name"] for each in listed] == list(SCENARIOS)
    assert all(each["title"] and each["shape"] for each in listed)


def test_a_misspelt_scenario_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean classify?" in refused(capsys, "clasify")


def test_no_scenario_is_answered_with_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert "mlserver-burst" in refused(capsys)
    assert "Which scenarios?" in refused(capsys, "classify", "--all")


def test_two_results_need_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "is no folder" in refused(capsys, "classify", "faq", "-o", str(tmp_path / "out.json"))


def test_an_unwritable_result_is_said_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "can't be written" in refused(capsys, "classify", "-o", str(tmp_path / "none" / "out.json"))


def test_a_server_needs_the_name_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs the name of a model" in refused(capsys, "classify", "--url", "127.0.0.1:1")


def test_a_column_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--column is about --data" in refused(capsys, "billsum", "--column", "text")


def test_a_peer_that_the_scenario_has_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no peer mlserver" in refused(capsys, "classify", "--peers", "mlserver")


def test_a_missing_file_of_texts_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.csv" in refused(capsys, "billsum", "--data", "none.csv", "--quick")
