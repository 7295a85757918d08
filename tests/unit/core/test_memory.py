"""The memory that a process can take: of the machine, and of its cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfx import memory


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files that are read in place of the system's; `meminfo` says that 2,000 kB are available."""
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  2000 kB\nSwapFree:  5000 kB\n")
    monkeypatch.setattr(memory, "MEMORY_FACTS", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (tmp_path / "version 2", tmp_path / "version 1"))
    return tmp_path


def test_without_a_cgroup_the_machines_available_memory_counts(files: Path) -> None:
    assert memory.memory_limit() is None
    assert memory.available_memory() == 2_048_000


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("version 2", "1000000\n", 1_000_000),
        ("version 2", "max\n", None),
        ("version 1", "1000000\n", 1_000_000),
        ("version 1", f"{(1 << 63) - 4096}\n", None),  # what it reports without a limit
    ],
)
def test_a_limit_of_either_version_of_cgroups_bounds_what_is_available(
    files: Path, name: str, text: str, limit: int | None
) -> None:
    (files / name).write_text(text)
    assert memory.memory_limit() == limit
    assert memory.available_memory() == (2_048_000 if limit is None else limit)


def test_without_facts_of_the_machine_the_limit_counts_if_there_is_one(files: Path) -> None:
    (files / "meminfo").write_text("MemTotal:  9000 kB\n")
    assert memory.available_memory() is None
    (files / "meminfo").unlink()
    (files / "version 2").write_text("1000000\n")
    assert memory.available_memory() == 1_000_000


def test_a_limit_above_what_the_machine_has_left_adds_nothing(files: Path) -> None:
    (files / "version 2").write_text("9000000\n")
    assert memory.available_memory() == 2_048_000
