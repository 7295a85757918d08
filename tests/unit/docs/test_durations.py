"""The table of how long each test file takes."""

from __future__ import annotations

from tests.rigs.machine.durations import TABLE, changes, read_table

RECORDED = {"a.py": 10.0, "b.py": 20.0, "gone.py": 30.0}


def test_changes_are_told_in_the_seconds_of_this_machine_largest_first() -> None:
    lines = changes({"a.py": 20.0, "b.py": 40.0, "new.py": 7.0}, RECORDED)
    assert "2.00 x" in lines[0]
    assert [line.split() for line in lines[1:]] == [["-60.0", "s", "gone.py"], ["+7.0", "s", "new.py"]]


def test_equal_times_are_no_change() -> None:
    assert len(changes(RECORDED, RECORDED)) == 1


def test_every_file_in_the_table_exists() -> None:
    files = read_table(TABLE.read_text())
    assert files and [file for file in files if not (TABLE.parents[1] / file).is_file()] == []
